"""The view of the orders."""

from django.http import HttpRequest, HttpResponseNotAllowed, JsonResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

import seglog
from orders.log import producer
from orders.models import Order


@csrf_exempt
def orders(request: HttpRequest) -> HttpResponseBase:
    """GET: the orders in the database. POST: send one to the log; answered when it is on the disk there."""
    if request.method == "GET":
        return JsonResponse([order.text for order in Order.objects.order_by("partition", "offset")], safe=False)
    if request.method != "POST":
        return HttpResponseNotAllowed(["GET", "POST"])
    try:
        receipt = producer().send(request.body).result()
    except seglog.SeglogError as error:  # what the log could not do is not the caller's fault
        return JsonResponse({"error": str(error)}, status=503)
    return JsonResponse({"offset": receipt.offset}, status=201)
