"""EMTC: environments, episodic memory, gate, learners and the training loop. Importing this loads no torch."""

__version__ = "1.0.0"
