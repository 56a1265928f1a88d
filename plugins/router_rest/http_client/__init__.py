"""Send requests and wait for their responses, many at a time; runs on executors, in the event loop of a task.

In comes a `requests.PreparedRequest`, authorised and signed; out comes a `Response`, or why there is none: `Unsent`
where the server has certainly not processed it, `InDoubt` where it may have. aiohttp does the sending
(docs/decisions/0008-aiohttp.md). Nothing here retries by itself, follows a redirect or keeps a cookie.
"""
