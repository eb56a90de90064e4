"""A server that speaks S3 (moto's) and answers one request at a time. Arguments: host and port.

S3 looks for a key and puts it in one step. moto takes two, so of two writers with `If-None-Match: *` both might create
the object.
"""

import sys
import threading

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

one_request = threading.Lock()
store = DomainDispatcherApplication(create_backend_app)


def answer(environ, start_response):
    with one_request:
        return list(store(environ, start_response))


if __name__ == "__main__":
    # Threads, because a client may keep a connection open without a request.
    run_simple(sys.argv[1], int(sys.argv[2]), answer, threaded=True, request_handler=MotoRequestHandler)
