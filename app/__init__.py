"""The app around learner and database: eight rooms, and data flow one way through them.

`analysis` turns runs into numbers, `figures` numbers into pictures; `replay`, `notebook` and `jobs` make of both what a
page or a command asks for; `ui` (all that imports Streamlit), `cli` and `bench` are the doors. A room asks those below
it and none above, which an import contract holds. `Home.py` is Streamlit's entry, `warmup.py` compiles ahead.
"""
