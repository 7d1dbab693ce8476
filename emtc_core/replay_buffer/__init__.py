"""Training episodes: which is where and how a batch is sampled (`buffer`), their rows, their sampling weights."""
