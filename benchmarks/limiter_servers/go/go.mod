module limiter_server

go 1.19

require (
	github.com/cespare/xxhash/v2 v2.1.2 // indirect
	github.com/go-chi/httprate v0.9.0 // indirect
	golang.org/x/time v0.5.0 // indirect
)
