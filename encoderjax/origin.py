"""The model that a run begins with: of another folder, or of its own checkpoint."""

from pathlib import Path

from encoderjax.config import ModelConfig, RunConfig
from encoderjax.interop.start import Start
from encoderjax.interop.weights import read_json
from encoderjax.objectives import head_names
from encoderjax.training.checkpoint import saved_steps


def origin_of(
    config: RunConfig, workdir: Path
) -> tuple[ModelConfig | None, Start | None]:
    """Returns the model that a run goes on with, and the folder it starts from.

    A workdir with a checkpoint stands alone: that folder may have vanished since.
    """
    described = workdir / "config.json"
    if not (saved_steps(workdir) and described.is_file()):
        start = open_start(config)
        return model_of(start), start
    if config.init_from is None and config.model.family is not None:
        return None, None
    return RunConfig.from_description(read_json(described)).model, None


def open_start(config: RunConfig) -> Start | None:
    """Loads the folder `init_from`; None where a run begins with new parameters."""
    if config.init_from is None:
        return None
    heads = head_names(config.objectives)
    return Start.open(
        config.init_from, heads, config.init_vocabulary, config.init_layers
    )


def model_of(start: Start | None) -> ModelConfig | None:
    """Returns the model that a run starts from."""
    return start and ModelConfig.whole(start.loaded.family, start.config)
