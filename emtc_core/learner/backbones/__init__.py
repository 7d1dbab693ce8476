"""One value system in each file, listed by name in its `BACKBONES`; `learner.factory` finds it there."""
