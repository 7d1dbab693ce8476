"""Processes of runs: launch, train, resume, evaluate, export, import curves, and mirror curves to other programs.

`sweeps` trains many runs, `alerts` finds runs that need attention, `questions` asks a running trainer for episodes,
`projections` computes 2-D layouts of the episodic memory in the background. The computations are in `emtc_core` and
`app.analysis`. Only the training process, the embedder of a projection, `gpu_check` and `policies` load torch. No
module that a page imports loads it.
"""
