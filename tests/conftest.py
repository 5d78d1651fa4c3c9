"""What all tests share: fast compilation and repeatable properties."""

import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.append(str(Path(__file__).parent))  # environments are found as `envs:Id`

settings.register_profile("uvd", deadline=None, derandomize=True)
settings.load_profile("uvd")


def pytest_configure(config: pytest.Config) -> None:
    # Quick tests run small programs once or twice: compiling them costs far more than running
    # them. Learning checks run long and want them fast.
    if config.option.markexpr != "slow":
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        if version("jaxlib").startswith("0.10."):  # a jaxlib without this flag ends the process
            os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
        # On several threads XLA's CPU products may differ in the last bit from call to call
        # (github.com/jax-ml/jax/issues/39741), and tests here compare bits.
        os.environ.setdefault("PJRT_NPROC", "1")
        # Tests and the processes they start compile many programs again and again. A folder for
        # each process of pytest's: JAX does not guard one against two that write to it.
        folder = tempfile.TemporaryDirectory(prefix="uvd-compiled-")
        config.add_cleanup(folder.cleanup)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder.name
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
