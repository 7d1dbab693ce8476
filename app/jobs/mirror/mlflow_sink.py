"""An experiment of MLflow in a SQLite file, with one MLflow run per run. Nothing is sent over the network."""

from pathlib import Path
from typing import Any, Final

from app.jobs.mirror.rows import LastSteps, MirroredRun, Row
from emtc_core.errors import ConfigError, Fault

NO_MLFLOW = 'MLflow is missing. Install it with: pip install -e ".[mlflow]"'
EXPERIMENT: Final = "emtc"
FILE: Final = "mlflow.db"
TAG: Final = "emtc.run"
_METRICS_PER_BATCH: Final = 1000
_PARAMS_PER_BATCH: Final = 100
_PARAM_CHARACTERS: Final = 500


class MlflowSink:
    """An MLflow experiment in a SQLite file, written with MLflow's client."""

    def __init__(self, out: Path) -> None:
        """Write to `out/mlflow.db`.

        Raises:
            ConfigError: If MLflow is not installed.
        """
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param, RunTag
        except ImportError as error:
            raise ConfigError(Fault(hint=NO_MLFLOW)) from error
        out.mkdir(parents=True, exist_ok=True)
        self._metric, self._param, self._tag = Metric, Param, RunTag
        self._client = MlflowClient(tracking_uri=f"sqlite:///{(out / FILE).resolve()}")
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        artifacts = (out / "artifacts").resolve().as_uri()
        self._experiment = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(EXPERIMENT, artifact_location=artifacts)
        )
        self._ids: dict[str, str] = {}

    def last_steps(self, run: MirroredRun) -> LastSteps:
        """Read the last step of each metric of a run from MLflow."""
        run_id = self._get_mlflow_id(run)
        metrics = self._client.get_run(run_id).data.metrics
        histories = {name: self._client.get_metric_history(run_id, name) for name in metrics}
        return {name: max(point.step for point in history) for name, history in histories.items()}

    def write(self, run: MirroredRun, rows: list[Row]) -> None:
        """Log rows. Their time is made of their step, so that MLflow recognizes a row that is written again."""
        start_ms = int(run.created_at.timestamp() * 1000)
        metrics = [
            self._metric(name, value, start_ms + row.env_step, row.env_step)
            for row in rows
            for name, value in row.values.items()
        ]
        for start in range(0, len(metrics), _METRICS_PER_BATCH):
            self._client.log_batch(self._get_mlflow_id(run), metrics=metrics[start : start + _METRICS_PER_BATCH])

    def close(self, run: MirroredRun) -> None:
        """Set the final status of a run that has ended."""
        if run.has_ended and run.key in self._ids:
            status = {"finished": "FINISHED", "stopped": "KILLED"}.get(run.status, "FAILED")
            self._client.set_terminated(self._ids[run.key], status=status)

    def _get_mlflow_id(self, run: MirroredRun) -> str:
        """Get MLflow's id of a run; create the run in MLflow if it is missing."""
        if run.key not in self._ids:
            matches = self._client.search_runs([self._experiment], f"tags.`{TAG}` = '{run.key}'")
            self._ids[run.key] = matches[0].info.run_id if matches else self._create(run)
        return self._ids[run.key]

    def _create(self, run: MirroredRun) -> str:
        tags = {TAG: run.key, "env": str(run.settings.get("env.name")), "map": str(run.settings.get("env.map"))}
        mlflow_run: Any = self._client.create_run(
            self._experiment, run_name=run.folder, tags=tags, start_time=int(run.created_at.timestamp() * 1000)
        )
        params = [self._param(key, str(value)[:_PARAM_CHARACTERS]) for key, value in run.settings.items()]
        for start in range(0, len(params), _PARAMS_PER_BATCH):
            self._client.log_batch(mlflow_run.info.run_id, params=params[start : start + _PARAMS_PER_BATCH])
        return mlflow_run.info.run_id
