"""The named figures and tables of the paper: the same for the pages, the command line and a notebook.

Each module gives `FIGURES` (name → function of the database and the chosen runs) and `TABLES` (name → function of the
database). What lives here: which rows a figure needs. What does not: drawing (`app.figures`), formats (`app.tables`).
"""
