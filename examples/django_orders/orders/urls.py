"""The one address of the site."""

from django.urls import path

from orders.views import orders

urlpatterns = [path("orders", orders)]
