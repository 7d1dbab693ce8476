"""Is this device computing what the CPU computes, and how fast? `emtc check device`, and the page Health."""
