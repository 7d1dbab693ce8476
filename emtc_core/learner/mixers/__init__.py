"""One mixing rule, or a family of them, in each file; `registry` finds them by the names in their `MIXERS`."""
