"""A site with Django: a view sends orders to the log, and a command brings them into the database, each once.

    pip install django
    python examples/django_orders/manage.py migrate --run-syncdb
    python examples/django_orders/manage.py runserver
    python examples/django_orders/manage.py take_orders

    curl --data 'three apples' localhost:8000/orders
    curl localhost:8000/orders

The two may be killed and started again at any time, and several commands share the work. The broker and the
account are those of the command line, SEGLOG_SERVER and SEGLOG_USER or a profile; DATABASE is the file of the database.
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    execute_from_command_line(sys.argv)
