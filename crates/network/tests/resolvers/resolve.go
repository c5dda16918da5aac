// Prints what Go's own resolver finds for each name: nothing where there is no such name.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
)

func main() {
	resolver := &net.Resolver{PreferGo: true}
	for _, name := range os.Args[1:] {
		found, err := resolver.LookupHost(context.Background(), name)
		var failure *net.DNSError
		fmt.Print(name, ":")
		if errors.As(err, &failure) && !failure.IsNotFound {
			fmt.Print(" ", err)
		}
		for _, address := range found {
			fmt.Print(" ", address)
		}
		fmt.Println()
	}
}
