// Package sdk_test holds what is tested across the packages of the SDK.
package sdk_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestReadme builds the plugin of README.md and asks it what it is.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(readme)
	if block == nil {
		t.Fatal("no program in README.md")
	}
	if lines := bytes.Count(block[1], []byte("\n")); lines > 65 {
		t.Errorf("the program of 60 lines has %d", lines)
	}
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "patchbay-dataplane-table_v0.1.0")
	if err := os.WriteFile(source, block[1], 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(binary, "-describe").Output()
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Name, Version string }
	if err := json.Unmarshal(out, &got); err != nil || got.Name != "table" || got.Version != "0.1.0" {
		t.Errorf("%v, it says it is %+v", err, got)
	}
	if out, err := exec.Command("gofmt", "-l", source).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("gofmt: %v %s", err, out)
	}
}
