"""A web service with FastAPI: a request's record is in the log before the request is answered.

    pip install fastapi uvicorn
    python examples/fastapi_service.py

    curl --data 'three apples' localhost:8000/orders
    curl localhost:8000/orders

The client and its producer live as long as the service, in the `lifespan` of its loop: requests that come at the same
time share batches, and what is on its way when the service stops is sent before it ends.

The broker and the account are those of the command line, SEGLOG_SERVER and SEGLOG_USER or a profile; PORT is the
service's own.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse

import seglog.asyncio

PORT = int(os.environ.get("PORT", "8000"))
TOPIC = "orders"


@asynccontextmanager
async def lifespan(service: FastAPI) -> AsyncIterator[None]:
    """The client and its producer, from the start of the service to its end."""
    async with seglog.asyncio.connect() as client:
        await client.create_topic(TOPIC, exist_ok=True)
        async with client.producer(TOPIC, delivery_timeout=20) as producer:
            service.state.client, service.state.producer = client, producer
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def take_order(request: Request) -> dict[str, int]:
    """Store an order; answered when it is on the disk."""
    delivery = await request.app.state.producer.send(await request.body())
    receipt = await delivery
    return {"offset": receipt.offset}


@app.get("/orders")
async def orders(request: Request, start: Annotated[int, Query(ge=0)] = 0) -> list[str]:
    """All orders from an offset on."""
    async with request.app.state.client.consumer(TOPIC, start={0: start}) as consumer:
        return [record.value.decode(errors="replace") async for record in consumer]


@app.exception_handler(seglog.SeglogError)
async def say_why(request: Request, error: Exception) -> JSONResponse:
    """What the log could not do is not the caller's fault."""
    return JSONResponse({"error": str(error), "path": request.url.path}, status_code=503)


if __name__ == "__main__":
    uvicorn.run(app, port=PORT, log_level="warning")
