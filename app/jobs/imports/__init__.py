"""Import curves of other programs: `read` reads the formats, `curves` checks the values."""
