"""For one release: a session that an older version started restarts its supervisor by this name."""

from sessionrun.runtime.main import main as main
