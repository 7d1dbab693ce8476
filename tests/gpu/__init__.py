"""Compare the results and the speed of a device with the CPU: `emtc check device` and the page Health."""
