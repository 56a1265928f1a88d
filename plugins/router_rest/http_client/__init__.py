"""Send requests and wait for their responses, many at a time; runs on executors, in the event loop of a task.

In comes a `requests.PreparedRequest`, authorised and signed; out comes a `Response`, or why there is none: `Unsent`
where for sure nothing was done with it, `InDoubt` where it may have been processed. aiohttp does the sending
(docs/decisions/0008-aiohttp.md). Nothing here retries by itself, follows a redirect or keeps a cookie.
"""
