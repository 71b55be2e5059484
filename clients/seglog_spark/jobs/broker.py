"""The broker of a job, as its executors come to it."""

from seglog.cli.arguments import Options
from seglog.cli.exits import UsageError
from seglog.core.security import Tls
from seglog_spark.servers import SecuredServer, Server


def server_of(options: Options) -> Server:
    """The broker of a job's command line. Raises UsageError for what cannot travel to executors."""
    security = dict(options.security)
    tls = security.pop("tls", None)
    if not security and tls is None:
        return options.server
    if "password" in security or ("user" in security and "password_file" not in security):
        raise UsageError(
            "a job's executors read the password from a file: give --password-file, or SEGLOG_PASSWORD_FILE"
        )
    files = {name: getattr(tls, name) for name in ("ca", "certificate", "key")} if isinstance(tls, Tls) else {}
    return SecuredServer(options.server, tls=tls if isinstance(tls, bool) else None, **security, **files)
