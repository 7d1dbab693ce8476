"""One mixing rule or family of rules per file. `backbones.value` collects them by name from the dicts `MIXERS`."""
