"""One mixing rule, or a family of them, in each file; `backbones.value` finds them by the names in their `MIXERS`."""
