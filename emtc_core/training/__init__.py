"""What joins the stages into a run: the loop, the episodic part, evaluation, checkpoints.

Each room of `emtc_core` is one stage of the data flow and imports only those before it; what needs them all is here.
At the root stand the words that every stage and the other packages share (records, control, metrics, errors), none of
which loads a stage. Drawn against it was a division by kind (method, learning, run), whose rooms needed each other.
"""
