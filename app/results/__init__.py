"""From runs to results: the one road that pages, `emtc export`, sweeps and notebooks take.

`select`: which runs, and which of them count → `study`: what may stand together → `variants`: everything but the seed →
`series`: one curve per seed → `statistics`: one number over seeds → `curves` and `named`: figures and tables.
What does not live here: SQL (`storage.queries`), drawing (`app.figures`), file formats (`app.tables`).
"""
