// Answers each request with a nonce chosen at the start and the number of requests so far.
package main

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log"
	"net/http"
	"os"
	"sync/atomic"
)

func main() {
	random := make([]byte, 8)
	if _, err := rand.Read(random); err != nil {
		log.Fatal(err)
	}
	nonce := hex.EncodeToString(random)
	var count atomic.Int64
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "nonce=%s count=%d\n", nonce, count.Add(1))
	})
	log.Fatal(http.ListenAndServe("0.0.0.0:"+os.Args[1], nil))
}
