"""`sita serve`: an adapted model behind HTTP, on FastAPI and uvicorn.

`server.py` is the parent process, `worker.py` loads the model in a worker, `app.py` answers its requests.

It does not use LitServe (0.2.19) for these reasons: a request whose worker is killed never gets an answer, the batching
loop polls and keeps a core busy, and a body that is neither a form nor JSON gets a 500 response.
"""
