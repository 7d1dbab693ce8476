"""Every mixing rule by name. To add one, write a module here that lists it in `MIXERS`."""

from importlib import import_module
from pkgutil import iter_modules

from torch import nn

from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.errors import ConfigError
from emtc_core.learner import mixers
from emtc_core.learner.mixers.base import MixerTable

_MODULES = [import_module(f"{mixers.__name__}.{each.name}") for each in iter_modules(mixers.__path__)]
MIXERS: MixerTable = {name: make for m in _MODULES for name, make in getattr(m, "MIXERS", {}).items()}


def make_mixer(rule: str, config: RunConfig, info: EnvInfo) -> nn.Module:
    """Make the mixing rule of a scalar backbone.

    Raises:
        ConfigError: If no module lists a rule of that name.
    """
    if rule not in MIXERS:
        raise ConfigError(
            f"No mixing rule is called {rule}. List it in MIXERS of a module in emtc_core/learner/mixers."
        )
    return MIXERS[rule](config, info)
