"""Replays of episodes: prepare frames and values, for the player in the browser and for exported files."""
