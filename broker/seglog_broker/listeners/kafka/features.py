"""The features that clients are told of, and UpdateFeatures, which cannot change them.

Of Kafka's features ``metadata.version`` only says to a client "as Kafka 4.3", and ``group.version`` that there are the
consumer groups of KIP-848. Others switch clients to what seglog does not have: ``transaction.version`` 2 to
transactions without AddPartitionsToTxn, ``share.version`` and ``streams.version`` to share and streams groups.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from seglog_broker.listeners.kafka.door import Caller
from seglog_broker.listeners.kafka.errors import MESSAGE_CHARACTERS_MAX
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode


class Levels(NamedTuple):
    """The levels of a feature that a broker supports, and the one in force."""

    lowest: int
    highest: int
    in_force: int


FEATURES: Final[Mapping[str, Levels]] = MappingProxyType(
    {"group.version": Levels(0, 1, 1), "metadata.version": Levels(7, 30, 30)}
)
"""Kafka 4.3.1's."""

_WITH_RESULTS: Final = range(2)  # versions


def add_features(response: messages.ApiVersionsResponse) -> None:
    """Add the features to a response to ApiVersions."""
    response.supported_features = [
        messages.ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
        for name, (lowest, highest, _) in FEATURES.items()
    ]
    response.finalized_features_epoch = 0
    response.finalized_features = [
        messages.ApiVersionsResponse.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
        for name, (_, _, level) in FEATURES.items()
    ]


def update_features(
    caller: Caller, request: messages.UpdateFeaturesRequest, version: int
) -> messages.UpdateFeaturesResponse:
    """A feature stays as it is; every other level is refused, and with it the request."""
    response = messages.UpdateFeaturesResponse(error_message=None)
    updates = {update.feature: update for update in request.feature_updates}
    for update in updates.values():
        levels = FEATURES.get(update.feature)
        if levels is not None and update.max_version_level == levels.in_force:
            continue
        why = f"Local controller {caller.node_id} "
        if levels is None:
            why += "does not support this feature."
        elif not levels.lowest <= update.max_version_level <= levels.highest:
            why += f"only supports versions {levels.lowest}-{levels.highest}"
        else:
            why += f"has no other than {levels.in_force}."
        response.error_code = ErrorCode.INVALID_UPDATE_VERSION
        response.error_message = (
            "The update failed for all features since the following feature had an error: "
            f"Invalid update version {update.max_version_level} for feature "
            f"{update.feature[:MESSAGE_CHARACTERS_MAX]}. {why}"
        )
        return response
    if version in _WITH_RESULTS:
        response.results = [
            messages.UpdateFeaturesResponse.UpdatableFeatureResult(feature=update.feature, error_message=None)
            for update in updates.values()
        ]
    return response
