"""InitProducerId: ids for idempotent producers."""

from seglog_broker.listeners.kafka.door import Caller
from seglog_broker.listeners.kafka.errors import error_code
from seglog_broker.listeners.replies import as_seglog_error
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import InitProducerReply, InitProducerRequest
from seglog_protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


async def init_producer_id(
    caller: Caller, request: messages.InitProducerIdRequest, version: int
) -> messages.InitProducerIdResponse:
    """A new producer id. Transactional producers are refused: there are no transactions."""
    del version
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return messages.InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=NO_PRODUCER_EPOCH)
    if request.transactional_id is not None:
        code = (
            ErrorCode.INVALID_REQUEST
            if not request.transactional_id
            else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED  # final for every client, unlike other codes
        )
        return messages.InitProducerIdResponse(error_code=code, producer_epoch=NO_PRODUCER_EPOCH)
    try:
        reply, _ = await caller.engine.answer(InitProducerRequest())
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        code = error_code(as_seglog_error(error, "InitProducerId"))
        return messages.InitProducerIdResponse(error_code=code, producer_epoch=NO_PRODUCER_EPOCH)
    assert isinstance(reply, InitProducerReply)
    return messages.InitProducerIdResponse(producer_id=reply.producer_id, producer_epoch=reply.producer_epoch)
