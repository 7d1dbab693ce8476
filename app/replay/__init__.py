"""An episode ready to be drawn: frames and values under one clock, for the player in the browser and as files."""
