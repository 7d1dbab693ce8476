"""One value system per file. `learner.factory` collects them by name from the dictionaries `BACKBONES`."""
