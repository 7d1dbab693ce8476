"""What somebody should know about runs: judged from the database, shown in the app, sent by `emtc watch`."""
