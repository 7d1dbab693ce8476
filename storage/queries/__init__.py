"""Questions that are answered and change nothing, by what they are about; each docstring asks its question.

A learning curve is read in `curves`, a snapshot in `memory`, an episode in `episodes`, raw rows in `tables`.
"""
