"""From runs to numbers: the one road that pages, `emtc export`, sweeps and notebooks take.

`comparable`: which runs, and what may stand together → `variants`: everything but the seed → `series`: one curve per
seed → `statistics`: one number over seeds. Beside it what is asked of a memory: `projections` to the plane,
`selection`, `collapse`, `what_if`. Nothing here draws (`app.figures`) or knows SQL (`storage.queries`).
"""
