"""Processes of runs: launch, train, resume, ask, evaluate and export, import and mirror curves.

`sweeps` trains many runs, `alerts` finds runs that need attention, `projections` computes layouts in the background.
Each module starts, watches or ends a process; the computations are in `emtc_core` and `app.analysis`. Only the training
process and `policies` load torch. No module that a page imports does.
"""
