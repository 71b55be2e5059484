"""The broker keys: Kafka's names, types, defaults and ranges, and the few that are ours, which begin with ``seglog.``.

Broker keys that only set the default of a topic key (``log.retention.hours``) are not attributes here: they are the
``synonyms`` of the topic keys, and their values are in ``topic_defaults``.
"""

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from seglog_broker.config.keys import (
    DEFAULT_ORIGIN,
    Described,
    Key,
    Origin,
    Synonym,
    keys_of,
    reloadable,
    settable,
    without_effect,
)
from seglog_broker.config.listener_keys import ListenerSetting
from seglog_broker.config.topic_config import NO_REPLICAS, SEGMENT_BYTES_MIN_KAFKA, TOPIC_KEYS, TopicConfig
from seglog_broker.config.topic_overrides import apply_overrides, validate_topic_config
from seglog_broker.config.values import (
    LONG_MAX,
    Address,
    Boolean,
    Directory,
    Double,
    Int,
    Listeners,
    Long,
    Mechanisms,
    Principals,
    ProtocolMap,
    Raw,
    Secret,
    Short,
    StoreType,
    Text,
    Words,
)

MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
"""Mechanisms of SASL, the strongest of those with passwords first."""

TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")

NO_CLUSTER: Final = "one node has no cluster"
NO_CONTROLLER: Final = "one node has no controllers"
ONE_LOOP: Final = "one event loop serves all requests"
NO_GSSAPI: Final = "there is no GSSAPI (Kerberos)"
NO_JAVA: Final = "TLS is OpenSSL's, not Java's"
NO_SHARE_GROUPS: Final = "there are no share groups"


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The complete configuration of the daemon. Attributes are the keys' names with ``_`` for ``.``, in their units.

    Made by ``load_config``, which checks it; nothing is checked on construction.
    """

    seglog_listen: Annotated[
        str,
        Key(
            Address(has_protocol=True),
            "Address of the native protocol; a security protocol may stand before it, as in SASL_SSL://0.0.0.0:9192.",
            "Use SASL_SSL://0.0.0.0:9192 to be reached from other machines.",
        ),
    ] = "127.0.0.1:9192"
    seglog_http_listen: Annotated[
        str,
        Key(
            Address(optional=True, has_protocol=True, example="127.0.0.1:9193"),
            "Address of health and metrics over HTTP (/livez, /readyz, /healthz, /metrics); empty for none. "
            "PLAINTEXT:// or SSL:// (HTTPS) may stand before it.",
            "Use 0.0.0.0:9193 to be asked from other machines, with seglog.http.token.file; change the port for a "
            "second broker of this machine.",
        ),
    ] = "127.0.0.1:9193"
    seglog_http_token_file: Annotated[
        str,
        reloadable(
            Text(),
            "File with the token, in one line of 16 characters or more (openssl rand -hex 32 makes one), that /metrics "
            "and /healthz want (Authorization: Bearer ...). Without it they are shown where seglog.http.listen is a "
            "loopback address, to those with a certificate (ssl.client.auth), and where seglog.open.to.everyone is "
            "true. /livez and /readyz answer anybody. Read again on SIGHUP.",
            "Together with an address in seglog.http.listen that other machines reach.",
        ),
    ] = ""
    listeners: Annotated[
        tuple[str, ...],
        Key(
            Listeners(),
            "Addresses for Kafka's clients, such as PLAINTEXT://127.0.0.1:9092; empty for none. Each has a name, as in "
            "INTERNAL://:9092,EXTERNAL://:9094.",
            "Use SASL_SSL://0.0.0.0:9092 to be reached from other machines.",
        ),
    ] = ("PLAINTEXT://127.0.0.1:9092",)
    advertised_listeners: Annotated[
        tuple[str, ...],
        reloadable(
            Listeners(is_advertised=True),
            "The address that Kafka's clients of a listener are told to use, under the name of that listener; of equal "
            "names one for each, in their order, or one for all. A listener without any names the address that the "
            "client has reached.",
            "Where clients reach the broker by another address than its own: through a mapped port or a proxy.",
        ),
    ] = ()
    listener_security_protocol_map: Annotated[
        tuple[str, ...],
        Key(
            ProtocolMap(),
            "What is spoken on a listener of some name: PLAINTEXT, SSL (TLS), SASL_PLAINTEXT or SASL_SSL (accounts).",
            "Together with names of your own in listeners: INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL.",
        ),
    ] = ("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT")
    seglog_open_to_everyone: Annotated[
        bool,
        Key(
            Boolean(),
            "Whether listeners without authentication may be reached from other machines: whoever reaches them may "
            "read, write and delete everything. Without it such a listener is opened on a loopback address alone, and "
            "so is one that takes tokens without a signature.",
            "Set it to true only where the network lets in nobody else.",
        ),
    ] = False
    super_users: Annotated[
        tuple[str, ...],
        reloadable(
            Principals(),
            "Who administers: topics, configurations and accounts, and deletes groups; User:NAME, with semicolons "
            "between several. All others produce, consume and commit, in every topic and group. Where no listener "
            "authenticates and it is empty, everyone administers.",
            "As soon as there are accounts: User:admin. User:ANONYMOUS is whoever comes without authentication.",
        ),
    ] = ()
    sasl_enabled_mechanisms: Annotated[
        tuple[str, ...],
        Key(
            Mechanisms(MECHANISMS),
            "How clients of SASL_PLAINTEXT and SASL_SSL listeners may prove who they are. PLAIN is offered over TLS "
            "and on loopback addresses alone. There is no GSSAPI.",
            "Add OAUTHBEARER for tokens of an identity provider.",
        ),
    ] = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
    seglog_sasl_plain_cleartext: Annotated[
        bool,
        Key(
            Boolean(),
            "Whether PLAIN is offered on SASL_PLAINTEXT listeners of any address: passwords cross the network as they "
            "are.",
            "Only where something else encrypts, such as a tunnel.",
        ),
    ] = False
    sasl_server_max_receive_size: Annotated[
        int,
        Key(
            Int(1),
            "Largest frame in bytes before a client is authenticated; a larger one closes the connection.",
            "Raise it for very large tokens.",
        ),
    ] = 524_288
    connections_max_reauth_ms: Annotated[
        int,
        reloadable(
            Long(1000, also=0),
            "Milliseconds after which a client has to authenticate again, a second or more; 0 for never, or at the end "
            "of its token.",
            "Set it so that a changed password counts after that time also where a connection stays open.",
        ),
    ] = 0
    connection_failed_authentication_delay_ms: Annotated[
        int,
        reloadable(
            Int(0),
            "Milliseconds before a failed login is answered.",
            "Raise it to make guessing slower.",
        ),
    ] = 100
    sasl_oauthbearer_jwks_endpoint_url: Annotated[
        str,
        Key(
            Text(),
            "Where the keys are that sign tokens, as JWKS: https://... or file:///....",
            "Together with OAUTHBEARER in sasl.enabled.mechanisms.",
        ),
    ] = ""
    sasl_oauthbearer_jwks_endpoint_refresh_ms: Annotated[
        int,
        Key(
            Long(1),
            "Milliseconds after which the keys are read again.",
            "Lower it where keys change often; one that is not known is looked up at once.",
        ),
    ] = 3_600_000
    sasl_oauthbearer_expected_audience: Annotated[
        tuple[str, ...],
        Key(Words(), "A token must be for one of these (aud).", "Always: your broker's name there."),
    ] = ()
    sasl_oauthbearer_allow_unverified_audience: Annotated[
        bool,
        Key(Boolean(), "Whether the broker starts without sasl.oauthbearer.expected.audience.", "In tests alone."),
    ] = False
    sasl_oauthbearer_expected_issuer: Annotated[
        str,
        Key(Text(), "Who must have issued a token (iss).", "Always: the identity provider's name."),
    ] = ""
    sasl_oauthbearer_allow_unverified_issuer: Annotated[
        bool,
        Key(Boolean(), "Whether the broker starts without sasl.oauthbearer.expected.issuer.", "In tests alone."),
    ] = False
    sasl_oauthbearer_scope_claim_name: Annotated[
        str,
        Key(Text(), "The claim that holds the scope of a token.", "Where it has another."),
    ] = "scope"
    sasl_oauthbearer_sub_claim_name: Annotated[
        str,
        Key(Text(), "The claim that names the account.", "Where it is another, as preferred_username."),
    ] = "sub"
    sasl_oauthbearer_clock_skew_seconds: Annotated[
        int,
        Key(Int(0), "Seconds by which the clocks of provider and broker may differ.", "Seldom."),
    ] = 30
    seglog_sasl_oauthbearer_unsecured: Annotated[
        bool,
        Key(
            Boolean(),
            "Whether tokens without a signature are taken: anyone can make one for any account. Listeners that take "
            "them are opened on loopback addresses alone, unless seglog.open.to.everyone.",
            "In tests alone.",
        ),
    ] = False
    ssl_keystore_type: Annotated[
        str,
        Key(
            StoreType(choices=("PEM",)),
            "Format of the broker's certificate and key. Java's formats are converted by openssl pkcs12.",
            "Never.",
        ),
    ] = "PEM"
    ssl_keystore_location: Annotated[
        str,
        reloadable(
            Text(),
            "File with the broker's private key and its chain of certificates, as PEM. Read again on SIGHUP.",
            "Together with SSL or SASL_SSL in listeners; unless ssl.keystore.key has it.",
        ),
    ] = ""
    ssl_keystore_certificate_chain: Annotated[
        str,
        reloadable(
            Secret(),
            "The broker's certificate, as PEM, and those above it.",
            "Where the configuration is to hold it, with ssl.keystore.key.",
        ),
    ] = field(default="", repr=False)
    ssl_keystore_key: Annotated[
        str,
        reloadable(
            Secret(),
            "The private key of ssl.keystore.certificate.chain, as PEM (PKCS#8).",
            "With ssl.keystore.certificate.chain.",
        ),
    ] = field(default="", repr=False)
    ssl_key_password: Annotated[
        str,
        reloadable(Secret(), "The password of the private key.", "Where the key is encrypted."),
    ] = field(default="", repr=False)
    ssl_truststore_type: Annotated[
        str,
        Key(StoreType(choices=("PEM",)), "Format of the certificates that sign those of clients.", "Never."),
    ] = "PEM"
    ssl_truststore_location: Annotated[
        str,
        reloadable(
            Text(),
            "File with the certificates that sign those of clients, as PEM. Read again on SIGHUP.",
            "Together with ssl.client.auth.",
        ),
    ] = ""
    ssl_truststore_certificates: Annotated[
        str,
        reloadable(
            Secret(),
            "The certificates that sign those of clients, as PEM.",
            "Where the configuration is to hold them.",
        ),
    ] = field(default="", repr=False)
    ssl_client_auth: Annotated[
        Literal["none", "requested", "required"],
        reloadable(
            Text(choices=("none", "requested", "required")),
            "Whether clients show a certificate of their own. On an SSL listener with required it is who they are.",
            "Set required for accounts by certificates.",
        ),
    ] = "none"
    ssl_enabled_protocols: Annotated[
        tuple[str, ...],
        reloadable(
            Words(TLS_VERSIONS),
            "Versions of TLS that are spoken.",
            "Set TLSv1.3 alone where no client is older.",
        ),
    ] = ("TLSv1.2", "TLSv1.3")
    ssl_cipher_suites: Annotated[
        tuple[str, ...],
        reloadable(
            Words(),
            "Cipher suites of TLS 1.2 by OpenSSL's names; empty for OpenSSL's own choice. Those of TLS 1.3 are fixed.",
            "Where a rule of your organisation names them.",
        ),
    ] = ()
    ssl_principal_mapping_rules: Annotated[
        str,
        reloadable(
            Text(),
            "How the subject of a client's certificate becomes a name: RULE:pattern/replacement/[LU], with commas "
            "between several, the first that matches counts; DEFAULT is the whole subject.",
            "Where names are to be short: RULE:^CN=([^,]+).*$/$1/,DEFAULT.",
        ),
    ] = "DEFAULT"
    node_id: Annotated[
        int,
        Key(
            Int(0),
            "The number of this broker, which Kafka's clients see as that of the leader of every partition.",
            "Where programs name the broker by its number, as in kafka-configs.sh --entity-name. A meta.properties "
            "that is there keeps its number.",
            synonyms=(Synonym("node.id"), Synonym("broker.id")),
        ),
    ] = 1
    seglog_kafka_acks_all: Annotated[
        Literal["disk", "os"],
        reloadable(
            Text(choices=("disk", "os")),
            "What acks=all of Kafka's clients waits for: records on the disk, or handed to the operating system.",
            "Set os where a power cut may take the latest records, for as many more acks a second as without fsync.",
        ),
    ] = "disk"
    seglog_kafka_replication_factor_lenient: Annotated[
        bool,
        reloadable(
            Boolean(),
            "Whether a topic may be created with a replication factor above 1, which then is 1.",
            "For programs that ask for three replicas and cannot be told otherwise.",
        ),
    ] = False
    log_dir: Annotated[
        str,
        Key(
            Directory(),
            "The one directory that holds everything; log.dirs is another name for it.",
            "Always, except for a trial.",
            synonyms=(Synonym("log.dirs"), Synonym("log.dir")),
        ),
    ] = "./data"
    num_partitions: Annotated[
        int,
        reloadable(
            Int(1),
            "Partitions of a new topic that is created without a number.",
            "Raise it when several consumers are to share the work on most topics.",
        ),
    ] = 1
    delete_topic_enable: Annotated[
        bool,
        reloadable(
            Boolean(),
            "Whether topics can be deleted at all.",
            "Set it to false to protect all topics.",
        ),
    ] = True
    auto_create_topics_enable: Annotated[
        bool,
        reloadable(
            Boolean(),
            "Whether producing to a topic that does not exist creates it, with num.partitions. Readers of seglog never "
            "do; a Kafka client that asks for its metadata does, as with Kafka.",
            "Set it to false to refuse mistyped names.",
        ),
    ] = True
    socket_request_max_bytes: Annotated[
        int,
        Key(
            Int(1),
            "Largest request in bytes; a larger one is refused before it is read.",
            "Lower it to bound the memory one connection can take.",
        ),
    ] = 104_857_600
    socket_send_buffer_bytes: Annotated[
        int,
        Key(
            Int(-1),
            "Bytes asked for as the system's send buffer of each connection; -1 for the system's own choice. Kafka "
            "asks for 102400. Linux gives twice as many, and no more than its net.core.wmem_max.",
            "Set it to -1 for consumers that are far away: a connection sends no more than the buffer in a round trip. "
            "For those that are near, a larger one is slower: its bytes leave the processor's cache.",
        ),
    ] = 262_144
    socket_receive_buffer_bytes: Annotated[
        int,
        Key(
            Int(-1),
            "Bytes asked for as the system's receive buffer of each connection; -1 for the system's own choice. Kafka "
            "asks for 102400.",
            "Seldom; the system's grows as it is needed.",
        ),
    ] = -1
    fetch_max_bytes: Annotated[
        int,
        reloadable(
            Int(1024),
            "Most bytes of batches in one answer to a fetch; one batch is sent even when it is larger.",
            "Seldom; clients ask for less.",
        ),
    ] = 57_671_680
    seglog_fetch_max_wait_ms_max: Annotated[
        int,
        reloadable(
            Int(0),
            "Most milliseconds a fetch may wait for new records; a longer max_wait_ms is reduced to this.",
            "Lower it when a proxy or firewall between client and broker closes quiet connections sooner.",
        ),
    ] = 300_000
    seglog_connections_max: Annotated[
        int,
        Key(
            Int(1),
            "Most connections at a time.",
            "Together with the limit on open files of the process, which must be higher.",
        ),
    ] = 10_000
    seglog_partitions_max: Annotated[
        int,
        reloadable(
            Int(1),
            "Most partitions of all topics together; further ones are refused with POLICY_VIOLATION.",
            "A partition takes some 20 KB of memory, also one without records.",
        ),
    ] = 100_000
    seglog_handles_max: Annotated[
        int,
        Key(
            Int(1),
            "Most segment files and index maps kept open at a time: no more than 512, or an eighth of the open files "
            "that the process is granted if that is more.",
            "Raise it above the number of partitions that are written at a time, and when readers often change between "
            "more segments than that.",
        ),
    ] = 2_048
    seglog_request_memory_max: Annotated[
        int,
        Key(
            Long(1_048_576),
            "Bytes of memory for large requests (over 64 KiB) of all connections together, taken as their bytes "
            "arrive. When it is used up, a request is not read further until others are done; while requests wait, "
            "one that arrives at less than 1 MiB a second is cut. A request larger than half of it is refused.",
            "Raise it when many producers send large requests at a time; lower it on a small machine.",
        ),
    ] = 268_435_456
    connections_max_idle_ms: Annotated[
        int,
        Key(
            Long(-1),
            "Milliseconds after which a connection is closed that sends nothing and waits for nothing; -1 for never.",
            "Lower it where clients leave many idle connections open; seglog's clients reconnect when they need to.",
        ),
    ] = 600_000
    seglog_connections_max_stall_ms: Annotated[
        int,
        Key(
            Long(1),
            "Milliseconds after which a connection is cut that reads nothing of an answer, or sends nothing more of a "
            "request that it has begun.",
            "Raise it for consumers that stop reading for a long time while they work.",
        ),
    ] = 60_000
    seglog_disk_free_soft_bytes: Annotated[
        int,
        reloadable(
            Long(-1),
            "Free bytes of the disk below which the broker warns, and above which it accepts records again after the "
            "disk was full; -1 for a tenth of the disk, at most 512 MiB.",
            "Raise it to be warned earlier.",
        ),
    ] = -1
    seglog_disk_free_hard_bytes: Annotated[
        int,
        reloadable(
            Long(-1),
            "Free bytes of the disk below which appends and new topics are refused, while reading and deleting "
            "continue; -1 for a twentieth of the disk, at most 256 MiB.",
            "Raise it where other programs write to the same disk.",
        ),
    ] = -1
    seglog_disk_ballast_bytes: Annotated[
        int,
        Key(
            Long(-1),
            "Size of a reserve file that is deleted when the disk is full, so that there is room for orderly "
            "deletions; 0 for none, -1 for a hundredth of the disk, at most 16 MiB. Beside it, eight empty files "
            "keep inodes.",
            "Seldom.",
        ),
    ] = -1
    seglog_missing_partitions: Annotated[
        str,
        Key(
            Text(("refuse", "empty")),
            "What a start does with partitions that had records and whose directories are missing. refuse: a log "
            "directory written by Kafka is not opened, and a partition known to seglog is offline. empty: such "
            "partitions start without records.",
            "Choose empty for one start, when it is certain that the records are not in another directory or broker.",
        ),
    ] = "refuse"
    seglog_acls_not_enforced: Annotated[
        bool,
        Key(
            Boolean(),
            "Whether a log directory is opened in whose Kafka metadata log there are ACLs, which are not enforced.",
            "Set it to true where every account may produce and consume, and only those in super.users administer.",
        ),
    ] = False
    seglog_log_format: Annotated[
        str,
        reloadable(
            Text(("console", "json")),
            "Format of the daemon's own log: console for people, json for one JSON object per line.",
            "Choose json where programs collect it.",
        ),
    ] = "console"
    seglog_log_level: Annotated[
        str,
        reloadable(
            Text(("debug", "info", "warning", "error")),
            "The lowest level that the daemon writes to its own log.",
            "Choose debug to follow single requests.",
        ),
    ] = "info"
    log_initial_task_delay_ms: Annotated[
        int,
        Key(
            Long(0),
            "Milliseconds between the start and the first run of the background tasks.",
            "Seldom.",
        ),
    ] = 30_000
    log_flush_offset_checkpoint_interval_ms: Annotated[
        int,
        reloadable(
            Int(0),
            "Milliseconds between two checkpoints: closed segments are flushed to the disk, and a start after a crash "
            "reads only the segments closed since, and the active segment of each partition that was written to.",
            "Seldom: smaller segments (log.segment.bytes) make a start after a crash faster.",
        ),
    ] = 60_000
    log_flush_start_offset_checkpoint_interval_ms: Annotated[
        int,
        without_effect(
            Int(0),
            "log start offsets are written with the other checkpoints, and at once when records are deleted",
        ),
    ] = 60_000
    log_flush_scheduler_interval_ms: Annotated[
        int,
        reloadable(
            Long(0),
            "Another default for flush.ms; the broker itself schedules the flushes.",
            "Together with flush.ms.",
        ),
    ] = LONG_MAX
    log_retention_check_interval_ms: Annotated[
        int,
        reloadable(
            Long(1),
            "Milliseconds between two searches for segments to delete.",
            "Lower it when the retention of a topic is shorter.",
        ),
    ] = 300_000
    num_recovery_threads_per_data_dir: Annotated[
        int,
        Key(
            Int(1),
            "Processes that recover partitions in parallel after a crash, while other partitions are served.",
            "Raise it on fast disks with many partitions and cores to spare.",
        ),
    ] = 2
    log_dir_failure_timeout_ms: Annotated[int, without_effect(Long(1), NO_CLUSTER)] = 30_000
    cordoned_log_dirs: Annotated[
        tuple[str, ...], settable(Words(), "there is exactly one log directory", holds=())
    ] = ()
    replica_high_watermark_checkpoint_interval_ms: Annotated[int, without_effect(Long(), NO_REPLICAS)] = 5000
    log_cleaner_enable: Annotated[
        bool,
        Key(
            Boolean(),
            "Whether compacted topics are compacted.",
            "Never; Kafka 5 has it always on. Without it compacted topics grow for ever.",
        ),
    ] = True
    log_cleaner_threads: Annotated[
        int,
        Key(
            Int(0),
            "Partitions that are compacted at a time, each in a process of its own; 0 switches compaction off.",
            "Raise it when compaction falls behind.",
        ),
    ] = 1
    log_cleaner_dedupe_buffer_size: Annotated[
        int,
        reloadable(
            Long(1_048_577),
            "Bytes of memory for the keys of a round of compaction, for all cleaners; a key takes its length plus 64.",
            "Raise it for topics with very many keys.",
        ),
    ] = 134_217_728
    log_cleaner_io_buffer_load_factor: Annotated[
        float,
        reloadable(
            Double(0.001, 1),
            "Share of the memory for keys that a round may fill before it ends. Kafka takes any number, and cannot "
            "compact with 0.",
            "Seldom.",
        ),
    ] = 0.9
    log_cleaner_io_buffer_size: Annotated[
        int,
        settable(Int(0), "pieces of a fixed size are read, and batches are never split"),
    ] = 524_288
    log_cleaner_io_max_bytes_per_second: Annotated[
        float,
        reloadable(
            Double(1),
            "Most bytes per second that compaction reads and writes, all cleaners and topics together. Kafka takes any "
            "number, and cannot compact with 0.",
            "Lower it when compaction disturbs producers and consumers.",
        ),
    ] = sys.float_info.max
    log_cleaner_backoff_ms: Annotated[
        int,
        reloadable(
            Long(0),
            "Milliseconds the cleaner sleeps when there is nothing to do.",
            "Seldom.",
        ),
    ] = 15_000
    seglog_scrub_bytes_per_second: Annotated[
        int,
        reloadable(
            Int(0),
            "Most bytes per second that are read in the background to find damage before a consumer does; 0: none.",
            "Raise it when a pass over all closed segments takes too long.",
        ),
    ] = 4_194_304
    seglog_scrub_interval_ms: Annotated[
        int,
        reloadable(
            Long(1),
            "Least milliseconds from the start of one pass over all closed segments to the start of the next.",
            "Lower it where disks are not trusted.",
        ),
    ] = 604_800_000
    seglog_metrics_topics_max: Annotated[
        int,
        reloadable(
            Int(0),
            "Most topics that have metrics of their own, the largest first; others are counted together.",
            "Raise it where dashboards are to show more topics: each partition has six samples.",
        ),
    ] = 200
    seglog_metrics_groups_max: Annotated[
        int,
        reloadable(
            Int(0),
            "Most groups that have metrics of their own, the largest lag first; others are counted together.",
            "Raise it where dashboards are to show more groups: each committed offset has three samples.",
        ),
    ] = 200
    producer_id_expiration_ms: Annotated[
        int,
        reloadable(
            Int(1),
            "Milliseconds without a batch after which an idempotent producer is forgotten.",
            "Raise it when producers may be disconnected for longer and then retry.",
        ),
    ] = 86_400_000
    producer_id_expiration_check_interval_ms: Annotated[
        int,
        reloadable(
            Int(1),
            "Milliseconds between two searches for producers to forget.",
            "Seldom.",
        ),
    ] = 600_000
    group_initial_rebalance_delay_ms: Annotated[
        int,
        reloadable(
            Int(0),
            "Milliseconds for which a new group waits for more members before it assigns partitions; Kafka waits 3000.",
            "Raise it where many consumers start together and each rebalance is expensive; 0 for tests.",
        ),
    ] = 300
    group_min_session_timeout_ms: Annotated[
        int,
        reloadable(
            Int(1),
            "Shortest session timeout in milliseconds that a member of a group may ask for.",
            "Lower it for tests that want to see a member die soon.",
        ),
    ] = 6_000
    group_max_session_timeout_ms: Annotated[
        int,
        reloadable(
            Int(1),
            "Longest session timeout in milliseconds that a member of a group may ask for.",
            "Lower it so that partitions of dead members are not held for long.",
        ),
    ] = 1_800_000
    group_max_size: Annotated[
        int,
        reloadable(
            Int(1),
            "Most members of a group.",
            "Lower it to protect the broker from programs that start without end.",
        ),
    ] = 2_147_483_647
    group_consumer_session_timeout_ms: Annotated[
        int,
        reloadable(
            Int(1),
            "Milliseconds without a heartbeat after which a member of the consumer protocol (KIP-848) is dead.",
            "Lower it to find dead members sooner.",
        ),
    ] = 45_000
    group_consumer_heartbeat_interval_ms: Annotated[
        int,
        reloadable(
            Int(1),
            "Milliseconds between two heartbeats of a member of the consumer protocol.",
            "Lower it for faster rebalances, at the price of more requests.",
        ),
    ] = 5_000
    group_consumer_min_session_timeout_ms: Annotated[
        int,
        reloadable(
            Int(1),
            "Least consumer.session.timeout.ms that a group may be given.",
            "Lower it where groups are to find dead members sooner than others.",
        ),
    ] = 45_000
    group_consumer_max_session_timeout_ms: Annotated[
        int,
        reloadable(
            Int(1),
            "Largest consumer.session.timeout.ms that a group may be given.",
            "Raise it for groups whose members are silent for long.",
        ),
    ] = 60_000
    group_consumer_min_heartbeat_interval_ms: Annotated[
        int,
        reloadable(
            Int(1),
            "Least consumer.heartbeat.interval.ms that a group may be given.",
            "Lower it for groups that are to rebalance faster than others.",
        ),
    ] = 5_000
    group_consumer_max_heartbeat_interval_ms: Annotated[
        int,
        reloadable(
            Int(1),
            "Largest consumer.heartbeat.interval.ms that a group may be given.",
            "Raise it for large groups that need no fast rebalances.",
        ),
    ] = 15_000
    group_consumer_max_size: Annotated[
        int,
        reloadable(
            Int(1),
            "Most members of a group of the consumer protocol.",
            "As group.max.size.",
        ),
    ] = 2_147_483_647
    group_consumer_assignors: Annotated[
        tuple[str, ...],
        reloadable(
            Words(("uniform", "range")),
            "Assignors that the broker has for groups of the consumer protocol; the first one is the default.",
            "Put range first where partitions of equal number belong together.",
        ),
    ] = ("uniform", "range")
    group_consumer_migration_policy: Annotated[
        Literal["disabled", "upgrade", "downgrade", "bidirectional"],
        reloadable(
            Text(choices=("disabled", "upgrade", "downgrade", "bidirectional")),
            "Whether a group with members may change from the classic to the consumer protocol (upgrade), and back.",
            "Set disabled to keep programs of both kinds apart.",
        ),
    ] = "bidirectional"
    seglog_groups_memory_bytes: Annotated[
        int,
        reloadable(
            Long(1_048_576),
            "Most bytes for the members of all groups: what they say, read and are assigned; from nine tenths on new "
            "ones are refused, while those that are there stay, also after a start.",
            "Raise it when the log says groups_refused: then new members get an error and try again.",
        ),
    ] = 134_217_728
    seglog_offsets_memory_bytes: Annotated[
        int,
        reloadable(
            Long(1_048_576),
            "Most bytes for committed offsets, some 400 each and their texts; from nine tenths on new ones are "
            "refused, while those that are there stay, also after a start.",
            "Raise it for millions of partitions with commits, or delete groups that are not used any more.",
        ),
    ] = 536_870_912
    offset_metadata_max_bytes: Annotated[
        int,
        reloadable(
            Int(0),
            "Most bytes of the text that may be committed with an offset.",
            "Raise it for programs that keep their state there.",
        ),
    ] = 4_096
    offsets_retention_minutes: Annotated[
        int,
        reloadable(
            Int(1),
            "Minutes for which the committed offsets of a group are kept that has no members.",
            "Raise it for groups that run seldom.",
        ),
    ] = 10_080
    offsets_retention_check_interval_ms: Annotated[
        int,
        reloadable(
            Long(1),
            "Milliseconds between two searches for committed offsets to forget.",
            "Seldom.",
        ),
    ] = 600_000
    offsets_topic_num_partitions: Annotated[
        int,
        Key(
            Int(1),
            "Partitions of the topic that holds committed offsets, when it is made; Kafka makes 50.",
            "Seldom: more of them are of use to a cluster, which may later take over the directory.",
        ),
    ] = 1
    offsets_topic_segment_bytes: Annotated[
        int,
        Key(
            Int(SEGMENT_BYTES_MIN_KAFKA),
            "Segment size of the topic that holds committed offsets, when it is made; Kafka takes 104857600.",
            "Raise it where much is committed; a start reads at least one segment that is not compacted yet.",
        ),
    ] = 16_777_216
    transaction_max_timeout_ms: Annotated[
        int,
        reloadable(
            Int(1),
            "Most milliseconds that a producer may ask for as the timeout of its transactions; one that is open for "
            "longer than its timeout is aborted.",
            "Raise it for producers that commit seldom: until then, consumers at read_committed wait.",
        ),
    ] = 900_000
    transactional_id_expiration_ms: Annotated[
        int,
        reloadable(
            Int(1),
            "Milliseconds after which a transactional id is forgotten that no producer has used.",
            "Seldom: a producer that comes back later gets a new producer id, and nothing it sent counts twice.",
        ),
    ] = 604_800_000
    transaction_remove_expired_transaction_cleanup_interval_ms: Annotated[
        int,
        reloadable(
            Int(1),
            "Milliseconds between two searches for transactional ids to forget.",
            "Seldom.",
        ),
    ] = 3_600_000
    seglog_transactions_memory_bytes: Annotated[
        int,
        reloadable(
            Long(1_048_576),
            "Most bytes for transactional ids and the partitions of their transactions; from nine tenths on those that "
            "were idle longest are forgotten before they expire.",
            "Raise it when the log says transactions_refused: then producers get an error and try again.",
        ),
    ] = 67_108_864
    transaction_state_log_num_partitions: Annotated[
        int,
        Key(
            Int(1),
            "Partitions of the topic that holds the state of transactions, when it is made; Kafka makes 50.",
            "Seldom: more of them are of use to a cluster, which may later take over the directory.",
        ),
    ] = 1
    transaction_state_log_segment_bytes: Annotated[
        int,
        Key(
            Int(SEGMENT_BYTES_MIN_KAFKA),
            "Segment size of the topic that holds the state of transactions, when it is made; Kafka takes 104857600.",
            "Raise it for very many transactions; a start reads at least one segment that is not compacted yet.",
        ),
    ] = 16_777_216
    transaction_partition_verification_enable: Annotated[
        bool,
        settable(Boolean(), "a partition takes batches of transactions that it is part of, and no others"),
    ] = True
    transaction_abort_timed_out_transaction_cleanup_interval_ms: Annotated[
        int, without_effect(Int(1), "each transaction is aborted at its own timeout")
    ] = 10_000
    transaction_state_log_replication_factor: Annotated[int, without_effect(Short(1), NO_REPLICAS, holds=1)] = 3
    transaction_state_log_min_isr: Annotated[int, without_effect(Int(1), NO_REPLICAS, holds=1)] = 2
    offsets_topic_replication_factor: Annotated[int, without_effect(Short(1), NO_REPLICAS, holds=1)] = 3
    default_replication_factor: Annotated[int, without_effect(Int(1), NO_REPLICAS, holds=1)] = 1
    num_replica_fetchers: Annotated[int, settable(Int(), NO_REPLICAS)] = 1
    replica_lag_time_max_ms: Annotated[int, without_effect(Long(), NO_REPLICAS)] = 30_000
    auto_leader_rebalance_enable: Annotated[bool, without_effect(Boolean(), NO_REPLICAS)] = True
    share_coordinator_state_topic_replication_factor: Annotated[
        int, without_effect(Short(1), NO_SHARE_GROUPS, holds=1)
    ] = 3
    share_coordinator_state_topic_min_isr: Annotated[int, without_effect(Short(1), NO_SHARE_GROUPS, holds=1)] = 2
    share_coordinator_state_topic_num_partitions: Annotated[int, without_effect(Int(1), NO_SHARE_GROUPS)] = 50
    process_roles: Annotated[tuple[str, ...], without_effect(Words(("broker", "controller")), NO_CONTROLLER)] = ()
    controller_listener_names: Annotated[
        tuple[str, ...],
        without_effect(Words(), "one node has no controllers, and their listeners are not opened", is_kept=True),
    ] = ()
    controller_quorum_voters: Annotated[tuple[str, ...], without_effect(Words(), NO_CONTROLLER)] = ()
    controller_quorum_bootstrap_servers: Annotated[tuple[str, ...], without_effect(Words(), NO_CONTROLLER)] = ()
    controller_quorum_election_timeout_ms: Annotated[int, without_effect(Int(), NO_CONTROLLER)] = 1_000
    controller_quorum_fetch_timeout_ms: Annotated[int, without_effect(Int(), NO_CONTROLLER)] = 2_000
    inter_broker_listener_name: Annotated[str, without_effect(Text(), NO_CLUSTER)] = ""
    security_inter_broker_protocol: Annotated[str, without_effect(Text(), NO_CLUSTER)] = "PLAINTEXT"
    sasl_mechanism_inter_broker_protocol: Annotated[str, settable(Text(), NO_CLUSTER)] = "GSSAPI"
    sasl_mechanism_controller_protocol: Annotated[str, without_effect(Text(), NO_CONTROLLER)] = "GSSAPI"
    sasl_kerberos_service_name: Annotated[str, settable(Text(), NO_GSSAPI)] = ""
    sasl_kerberos_kinit_cmd: Annotated[str, settable(Text(), NO_GSSAPI)] = "/usr/bin/kinit"
    sasl_kerberos_min_time_before_relogin: Annotated[int, settable(Long(), NO_GSSAPI)] = 60_000
    sasl_kerberos_principal_to_local_rules: Annotated[tuple[str, ...], settable(Words(), NO_GSSAPI)] = ("DEFAULT",)
    sasl_kerberos_ticket_renew_jitter: Annotated[float, settable(Double(), NO_GSSAPI)] = 0.05
    sasl_kerberos_ticket_renew_window_factor: Annotated[float, settable(Double(), NO_GSSAPI)] = 0.8
    ssl_endpoint_identification_algorithm: Annotated[
        str, settable(Text(), "the broker connects to no other broker; clients check its name")
    ] = "https"
    ssl_protocol: Annotated[str, settable(Text(), "ssl.enabled.protocols alone says which versions are spoken")] = (
        "TLSv1.3"
    )
    ssl_provider: Annotated[str, settable(Text(), NO_JAVA)] = ""
    ssl_secure_random_implementation: Annotated[str, settable(Text(), NO_JAVA)] = ""
    ssl_keymanager_algorithm: Annotated[str, settable(Text(), NO_JAVA)] = "SunX509"
    ssl_trustmanager_algorithm: Annotated[str, settable(Text(), NO_JAVA)] = "PKIX"
    ssl_allow_dn_changes: Annotated[
        bool, without_effect(Boolean(), "a reload takes every certificate that its key fits")
    ] = False
    ssl_allow_san_changes: Annotated[
        bool, without_effect(Boolean(), "a reload takes every certificate that its key fits")
    ] = False
    broker_rack: Annotated[str, without_effect(Text(), NO_CLUSTER)] = ""
    controlled_shutdown_enable: Annotated[bool, without_effect(Boolean(), NO_CLUSTER)] = True
    num_network_threads: Annotated[int, settable(Int(1), ONE_LOOP)] = 3
    num_io_threads: Annotated[int, settable(Int(1), ONE_LOOP)] = 8
    background_threads: Annotated[int, settable(Int(1), ONE_LOOP)] = 10
    group_coordinator_threads: Annotated[int, without_effect(Int(1), ONE_LOOP)] = 4
    queued_max_requests: Annotated[int, without_effect(Int(1), "requests are bounded by their memory")] = 500
    socket_listen_backlog_size: Annotated[int, without_effect(Int(1), "the system's own limit is asked for")] = 50
    topic_defaults: TopicConfig = field(default_factory=TopicConfig, kw_only=True)
    """The configuration of a topic without settings of its own."""
    listener_settings: tuple[ListenerSetting, ...] = field(default=(), kw_only=True)
    """What single listeners of Kafka's have in place of what holds for all."""
    origins: Mapping[str, Origin] = field(default_factory=dict, repr=False, compare=False, kw_only=True)
    """The origin of each value that is not a default, by broker key."""

    def topic_config(self, overrides: Mapping[str, Raw]) -> TopicConfig:
        """A topic's configuration: its own overrides, over the broker's defaults for topics, over Kafka's defaults.

        Raises InvalidConfigError for an unknown key or a value outside its range.
        """
        return apply_overrides(self.topic_defaults, overrides)

    def of_listener(self, name: str) -> "BrokerConfig":
        """The configuration as a listener has it; ``name`` is in capitals, and empty for those that are not Kafka's."""
        own = {setting.key.attribute: setting.value for setting in self.listener_settings if setting.listener == name}
        return dataclasses.replace(self, **own) if own else self  # type: ignore[arg-type] # each value is of its key's kind

    def validate_topic_config(self, overrides: Mapping[str, Raw]) -> tuple[dict[str, str], list[str]]:
        """``topic_overrides.validate_topic_config`` against the defaults of this broker."""
        return validate_topic_config(overrides, self.topic_defaults)

    def origin(self, name: str) -> Origin:
        """The origin of the value of a broker key, under any of its names. Raises KeyError for an unknown key."""
        if name in BROKER_NAMES:
            return self.origins.get(BROKER_NAMES[name].name, DEFAULT_ORIGIN)
        return self.topic_defaults.origin(TOPIC_DEFAULT_NAMES[name][0].name)

    def describe(self) -> list[Described]:
        """Every setting with its value and origin: the broker's own, then its defaults for topics.

        The latter are listed under their strongest broker name (``log.retention.ms``, whichever unit was used).
        """
        lines = []
        for key in BROKER_KEYS.values():
            origin = self.origin(key.name)
            lines.append(key.described(getattr(self, key.attribute), origin))
        for line in self.topic_defaults.describe():
            synonyms = TOPIC_KEYS[line.key].synonyms
            if synonyms:
                lines.append(line._replace(key=synonyms[0].name))
        return lines


BROKER_KEYS: Final[Mapping[str, Key]] = keys_of(BrokerConfig, topic=False)
"""Every broker key that is not a topic default, by its name."""

BROKER_NAMES: Final[Mapping[str, Key]] = {synonym.name: key for key in BROKER_KEYS.values() for synonym in key.names}
"""Every name under which such a key may be written."""

TOPIC_DEFAULT_NAMES: Final[Mapping[str, tuple[Key, Synonym]]] = {
    synonym.name: (key, synonym) for key in TOPIC_KEYS.values() for synonym in key.synonyms
}
"""Every broker key that sets the default of a topic key."""

CONFIG_NAMES: Final = frozenset(BROKER_NAMES) | frozenset(TOPIC_DEFAULT_NAMES)
"""Every name that may stand in the broker's configuration."""
