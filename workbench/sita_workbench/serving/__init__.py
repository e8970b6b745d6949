"""`sita serve`: an adapted model behind HTTP.

    server.py     the parent: binds the port, starts worker processes, starts one again that died, ends them all
    worker.py     a worker: loads the model, and runs uvicorn with the application
    app.py        the application: /predict, /health, /info, /metrics
    decoding.py   from an upload to pixels, within limits; what is wrong with it is one line and a status
    batching.py   images that wait at the same time run in one call of the model
    responses.py  an answer as JSON, or as a picture of labels
    metrics.py    what Prometheus reads, counted over all workers
    baseline.py   what the gauge of shift is held against
    settings.py   what a worker has to know, as a value that can be handed to a process

FastAPI and uvicorn, not LitServe, which was tried first (0.2.19): a request whose worker is killed never gets an answer
there, whatever its timeout; its batching loop polls, and keeps a core busy while nothing happens; and a body that is
neither a form nor JSON is a 500.
"""
