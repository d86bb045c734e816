package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// large writes a configuration of that many services in native syntax.
func large(services, endpoints int) string {
	var b strings.Builder
	b.WriteString("vip_pool \"default\" {\n  cidr = [\"10.96.0.0/12\"]\n}\n\ndataplane \"userspace\" {}\n")
	for i := range services {
		fmt.Fprintf(&b, "\nservice \"service-%05d\" {\n  port    = %d\n  balance = \"least_connections\"\n", i, 1024+i%5000)
		for j := range endpoints {
			fmt.Fprintf(&b, "\n  endpoint {\n    address = \"10.%d.%d.%d:8080\"\n    weight  = %d\n  }\n", j, i>>8&255, i&255, 1+j%3)
		}
		b.WriteString("  check {\n    http     = \"/health\"\n    interval = \"5s\"\n  }\n}\n")
	}
	return b.String()
}

// largeJSON is the same in JSON.
func largeJSON(services, endpoints int) string {
	all := map[string]any{}
	for i := range services {
		var eps []any
		for j := range endpoints {
			eps = append(eps, map[string]any{"address": fmt.Sprintf("10.%d.%d.%d:8080", j, i>>8&255, i&255), "weight": 1 + j%3})
		}
		all[fmt.Sprintf("service-%05d", i)] = map[string]any{
			"port": 1024 + i%5000, "balance": "least_connections", "endpoint": eps,
			"check": map[string]any{"http": "/health", "interval": "5s"},
		}
	}
	data, _ := json.MarshalIndent(map[string]any{
		"vip_pool":  map[string]any{"default": map[string]any{"cidr": []string{"10.96.0.0/12"}}},
		"dataplane": map[string]any{"userspace": map[string]any{}},
		"service":   all,
	}, "", "  ")
	return string(data)
}

func benchmarkLoad(b *testing.B, name, text string) {
	path := filepath.Join(b.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, diags := Load([]string{path}, testOptions()); diags.Len() > 0 {
			b.Fatal(diags.All())
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	for _, services := range []int{1000, 5000, 20000} {
		b.Run(fmt.Sprintf("native/%d", services), func(b *testing.B) { benchmarkLoad(b, "large.hcl", large(services, 10)) })
		b.Run(fmt.Sprintf("json/%d", services), func(b *testing.B) { benchmarkLoad(b, "large.json", largeJSON(services, 10)) })
	}
}
