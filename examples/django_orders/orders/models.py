"""The table of orders."""

from typing import ClassVar

from django.db import models


class Order(models.Model):
    """An order, and where it is in the log: a record that comes twice is the same order."""

    partition = models.IntegerField()
    offset = models.BigIntegerField()
    text = models.TextField()

    class Meta:
        """What makes an order the same."""

        constraints: ClassVar = [models.UniqueConstraint(fields=["partition", "offset"], name="one_for_each_record")]

    def __str__(self) -> str:
        return str(self.text)
