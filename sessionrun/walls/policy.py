"""What each policy hides and lets in: secrets of the home directory and variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sessionrun.walls.argv import PROXY_URL

SECRET_FOLDERS: Final = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/gh",
    ".config/hub",
    ".config/op",
    ".config/glab-cli",
    ".config/rclone",
    ".config/doctl",
    ".config/hcloud",
    ".config/sops",
    ".config/github-copilot",
    ".config/sessionrun/cluster",
    ".oci",
    ".fly",
    ".kaggle",
    ".local/share/uv/credentials",
    ".kube",
    ".docker",
    ".password-store",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".config/google-chrome",
    ".config/google-chrome-beta",
    ".config/google-chrome-unstable",
    ".config/chromium",
    ".config/vivaldi",
    ".config/opera",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
    ".mozilla",
    ".thunderbird",
    "snap/firefox",
    "snap/chromium",
    "snap/brave",
    ".var/app/org.mozilla.firefox",
    ".var/app/com.google.Chrome",
    ".var/app/org.chromium.Chromium",
    ".var/app/com.brave.Browser",
    "Library/Keychains",
)
"""Folders below the home directory that hold keys, log-ins or browser profiles."""

SECRET_FILES: Final = (
    ".netrc",
    "_netrc",
    ".git-credentials",
    ".config/git/credentials",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".s3cfg",
    ".boto",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".terraform.d/credentials.tfrc.json",
    ".terraformrc",
    ".pulumi/credentials.json",
    ".config/containers/auth.json",
    ".config/helm/registry/config.json",
    ".config/composer/auth.json",
    ".composer/auth.json",
    ".cache/huggingface/token",
    ".databrickscfg",
    ".pg_service.conf",
    ".curlrc",
    ".vault-token",
    ".Xauthority",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".node_repl_history",
    ".psql_history",
    ".mysql_history",
    ".sqlite_history",
    ".rediscli_history",
    ".irb_history",
    ".lesshst",
    ".viminfo",
    ".local/share/fish/fish_history",
    ".local/share/atuin/history.db",
)
"""Files below the home directory that hold keys, log-ins, or what was typed."""

SECRET_VARIABLES: Final = (
    *("KUBECONFIG", "GNUPGHOME", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "PASSWORD_STORE_DIR", "GH_CONFIG_DIR"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AZURE_CONFIG_DIR"),
    *("CLOUDSDK_CONFIG", "GOOGLE_APPLICATION_CREDENTIALS", "BOTO_CONFIG", "RCLONE_CONFIG", "TF_CLI_CONFIG_FILE"),
    *("NETRC", "CURL_HOME/.netrc", "CURL_HOME/.curlrc", "PGPASSFILE", "PGSERVICEFILE", "XAUTHORITY"),
    *("NPM_CONFIG_USERCONFIG", "npm_config_userconfig", "PIP_CONFIG_FILE", "UV_CREDENTIALS_DIR"),
    *("CARGO_HOME/credentials", "CARGO_HOME/credentials.toml"),
    *("GIT_ASKPASS", "SSH_ASKPASS", "SUDO_ASKPASS", "SSH_AUTH_SOCK"),
    *("HISTFILE", "ZDOTDIR/.zsh_history", "PYTHON_HISTORY", "NODE_REPL_HISTORY", "PSQL_HISTORY", "MYSQL_HISTFILE"),
    *("SQLITE_HISTORY", "LESSHISTFILE", "VIMINFO"),
    *("SESSIONRUN_CERTS", "SESSIONRUN_NODES"),
)
"""Variables that name a file, a folder or several of them with keys, log-ins, or what was typed; behind a slash
the name of a file in such a folder of which the rest is no secret."""

SYSTEM_SECRETS: Final = (
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/ssh/ssh_host_rsa_key",
    "/etc/ssh/ssh_host_ecdsa_key",
    "/etc/ssh/ssh_host_ed25519_key",
)
"""Files of the system that only root can read."""

VARIABLES: Final = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "COLORTERM", "NO_COLOR"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTEST_ADDOPTS", "IS_SANDBOX"),
    )
)
"""Variables of the caller that come in."""

PREFIXES: Final = ("LC_", "SESSIONRUN_")
"""The same by how their names begin; those that lead to processes of ours are set anew for each job."""

CACHES: Final = (
    ("XDG_CACHE_HOME", "/tmp/.cache"),
    ("npm_config_cache", "/tmp/.npm"),
    ("TMPDIR", "/tmp"),
)
"""Where programs keep what they could make again: the home directory cannot be written."""

_LEADS_TO_US: Final = frozenset(
    ("SESSIONRUN_RESULTS_DIR", "SESSIONRUN_JOB", "SESSIONRUN_GIT", "SESSIONRUN_CERTS", "SESSIONRUN_NODES")
)
"""Variables of ours that lead to what lies outside, or are for programs of ours alone."""


def filter_environment(
    environ: Mapping[str, str],
    own: Mapping[str, str],
    *,
    prefixes: Iterable[str] = (),
    names: Iterable[str] = (),
    proxied: bool = False,
) -> dict[str, str]:
    """The variables of a program inside, all of them: those of the caller may hold keys.

    Args:
        environ: those of the session.
        own: those of the job, which all come in.
        prefixes: how the names of others begin that come in.
        names: names of others that come in.
        proxied: whether the network is a proxy's.
    """
    wanted, begins = {*VARIABLES, *names}, (*PREFIXES, *prefixes)
    inside = {name: value for name, value in environ.items() if name in wanted or name.startswith(begins)}
    inside = {name: value for name, value in inside.items() if name not in _LEADS_TO_US}
    inside = {**inside, **dict(CACHES), **own}
    if proxied:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            inside |= {name: PROXY_URL, name.lower(): PROXY_URL}
        inside |= {"NO_PROXY": "", "no_proxy": "", "NODE_USE_ENV_PROXY": "1"}
    return inside
