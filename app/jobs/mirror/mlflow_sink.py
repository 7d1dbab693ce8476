"""Write to MLflow: one experiment in a SQLite file, with one MLflow run per run. Nothing is sent over the network."""

from pathlib import Path
from typing import Any, Final

from app.jobs.mirror.rows import LastSteps, MirroredRun, Row
from emtc_core.errors import ConfigError, Fault

NO_MLFLOW = 'MLflow is missing. Install it with: pip install -e ".[mlflow]"'
EXPERIMENT: Final = "emtc"
FILE: Final = "mlflow.db"
RUN_TAG: Final = "emtc.run"
"""Tag of an MLflow run with `MirroredRun.key`: the id of our run, with a suffix after a resume that replaced rows."""
_METRICS_PER_BATCH: Final = 1000
_PARAMS_PER_BATCH: Final = 100
_MAX_PARAM_CHARACTERS: Final = 500


class MlflowSink:
    """An MLflow experiment in a SQLite file, written with MLflow's client."""

    def __init__(self, out: Path) -> None:
        """Write to `out/mlflow.db`.

        Raises:
            ConfigError: If MLflow is not installed.
        """
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
        except ImportError as error:
            raise ConfigError(Fault(hint=NO_MLFLOW)) from error
        out.mkdir(parents=True, exist_ok=True)
        # MLflow is optional, so the classes are imported here and stored for the other methods.
        self._metric_class = Metric
        self._param_class = Param
        self._client = MlflowClient(tracking_uri=f"sqlite:///{(out / FILE).resolve()}")
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        artifacts = (out / "artifacts").resolve().as_uri()
        if experiment:
            self._experiment_id = experiment.experiment_id
        else:
            self._experiment_id = self._client.create_experiment(EXPERIMENT, artifact_location=artifacts)
        self._mlflow_ids: dict[str, str] = {}
        """Key of our run → id of its MLflow run."""

    def last_steps(self, run: MirroredRun) -> LastSteps:
        """Read the last step of each metric of a run from MLflow."""
        run_id = self._get_mlflow_id(run)
        metrics = self._client.get_run(run_id).data.metrics
        histories = {name: self._client.get_metric_history(run_id, name) for name in metrics}
        return {name: max(point.step for point in history) for name, history in histories.items()}

    def write(self, run: MirroredRun, rows: list[Row]) -> None:
        """Log rows. The time is computed from the env step, so MLflow ignores a row that is written again."""
        start_ms = int(run.created_at.timestamp() * 1000)
        # The time is artificial: the start of the run plus 1 ms per env step.
        metrics = [
            self._metric_class(name, value, start_ms + row.env_step, row.env_step)
            for row in rows
            for name, value in row.values.items()
        ]
        for start in range(0, len(metrics), _METRICS_PER_BATCH):
            self._client.log_batch(self._get_mlflow_id(run), metrics=metrics[start : start + _METRICS_PER_BATCH])

    def close(self, run: MirroredRun) -> None:
        """Set the final status of a run that has ended. The sink stays open for other runs."""
        if run.has_ended and run.key in self._mlflow_ids:
            status = {"finished": "FINISHED", "stopped": "KILLED"}.get(run.status, "FAILED")
            self._client.set_terminated(self._mlflow_ids[run.key], status=status)

    def _get_mlflow_id(self, run: MirroredRun) -> str:
        """Get MLflow's id of a run; create the run in MLflow if it is missing."""
        if run.key not in self._mlflow_ids:
            matches = self._client.search_runs([self._experiment_id], f"tags.`{RUN_TAG}` = '{run.key}'")
            self._mlflow_ids[run.key] = matches[0].info.run_id if matches else self._create(run)
        return self._mlflow_ids[run.key]

    def _create(self, run: MirroredRun) -> str:
        tags = {RUN_TAG: run.key, "env": str(run.settings.get("env.name")), "map": str(run.settings.get("env.map"))}
        mlflow_run: Any = self._client.create_run(
            self._experiment_id, run_name=run.folder, tags=tags, start_time=int(run.created_at.timestamp() * 1000)
        )
        params = [self._param_class(key, str(value)[:_MAX_PARAM_CHARACTERS]) for key, value in run.settings.items()]
        for start in range(0, len(params), _PARAMS_PER_BATCH):
            self._client.log_batch(mlflow_run.info.run_id, params=params[start : start + _PARAMS_PER_BATCH])
        return mlflow_run.info.run_id
