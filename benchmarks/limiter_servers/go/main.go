// A thin HTTP server in front of limiters that others wrote: a token bucket and a sliding window.
//
// Each path, /router and /naive, has a limiter and a log of its own: a line per answer, with the time and the status.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-chi/httprate"
	"golang.org/x/time/rate"
)

func main() {
	kind := flag.String("kind", "bucket", "bucket (x/time/rate) or sliding (httprate)")
	limit := flag.Float64("limit", 50, "calls in a window")
	burst := flag.Int("burst", 1, "tokens of a bucket")
	window := flag.Duration("window", time.Second, "the window")
	folder := flag.String("folder", ".", "where the logs are written")
	flag.Parse()

	for _, client := range []string{"router", "naive"} {
		limited := limiter(*kind, *limit, *burst, *window)
		file, err := os.Create(filepath.Join(*folder, client+".log"))
		if err != nil {
			log.Fatal(err)
		}
		http.Handle("/"+client, logged(limited(http.HandlerFunc(accept)), file))
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	log.Fatal(http.Serve(listener, nil))
}

func accept(writer http.ResponseWriter, _ *http.Request) {
	writer.WriteHeader(http.StatusOK)
}

// limiter returns a middleware that answers 429 to calls above the limit.
func limiter(kind string, limit float64, burst int, window time.Duration) func(http.Handler) http.Handler {
	if kind == "sliding" {
		return httprate.Limit(int(limit), window)
	}
	bucket := rate.NewLimiter(rate.Limit(limit/window.Seconds()), burst)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
			if !bucket.Allow() {
				writer.WriteHeader(http.StatusTooManyRequests)
				return
			}
			next.ServeHTTP(writer, request)
		})
	}
}

type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// logged writes a line for each answer, before the client gets it.
func logged(next http.Handler, file *os.File) http.Handler {
	var lock sync.Mutex
	return http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		recorded := &recorder{writer, http.StatusOK}
		arrived := time.Now()
		next.ServeHTTP(recorded, request)
		lock.Lock()
		defer lock.Unlock()
		fmt.Fprintf(file, "%.6f %d\n", float64(arrived.UnixMicro())/1e6, recorded.status)
	})
}
