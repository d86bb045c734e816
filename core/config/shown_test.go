package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// secretValues are what the variable and the file hold, wrong for one argument
// or the other, and what of them no message may show.
var secretValues = []struct{ value, never string }{
	{"hunter2 is secret", "hunter2"},
	{"hunter2-name", "hunter2"},
	{`hunter2"quoted`, "quoted"},
	{"/hunter2#x", "hunter2"},
	{"hunter2://host", "hunter2"},
	{"hunter2:x", "hunter2"},
	{"name:hunter2**[", "hunter2"},
	{"user:hunter2@host:80", "hunter2"},
	{"10.99.98.97", "98.97"},
	{"10.99.98.0/24", "99.98"},
	{"10.99.98.97/24", "99.98"},
	{"10.99.98.97:80", "99.98"},
	{"240.99.98.97:80", "99.98"},
	{"240.99.98.97", "99.98"},
	{"240.99.98.0/24", "99.98"},
	{"10.96.255.255", "255.255"},
	{"2001:db8:77::98%eth9", "db8:77"},
	{"2001:db8:77::98", "db8:77"},
	{"48613", "48613"},
	{"4861348613", "48613"},
	{"-48613", "48613"},
	{"48613ns", "48613"},
	{"two-services", "two-services"}, // like "two-service" of the file
}

var allSecrets = flag.Bool("all-secrets", false, "try every secret in every place; it takes minutes")

// secretForms are the ways in which a value gets into an argument.
var secretForms = []string{
	`env("SECRET")`, `file("secret.txt")`, `(env("SECRET"))`, `"${env("SECRET")}"`, `"${env("SECRET")}x"`,
	"<<EOT\n${env(\"SECRET\")}\nEOT\n", "<<-EOT\n  a\n  ${file(\"secret.txt\")}\n  EOT\n",
	`[env("SECRET")]`, `[env("SECRET"), env("SECRET")]`, `[env("SECRET"), file("secret.txt")][0]`, `{ a = env("SECRET") }.a`,
	`{ a = env("SECRET") }["a"]`, `[env("SECRET")][*]`, `true ? env("SECRET") : ""`, `env("SECRET") ? 1 : 2`,
	`[for x in [env("SECRET")] : x]`, `[for x in ["SECRET"] : env(x)]`, `{ for x in [env("SECRET"), env("SECRET")] : x => 1 }`,
	`{ for x in [env("SECRET")] : x => x }`, `{ (env("SECRET")) = 1 }`, `{ a = env("SECRET") }`, `{ a = { b = [env("SECRET")] } }`,
	`[{ name = env("SECRET"), weight = env("SECRET") }]`, `{ name = env("SECRET") }`, `{ retries = env("SECRET"), timeout = env("SECRET") }`,
	`env(env("SECRET"))`, `file(env("SECRET"))`, `file("${env("SECRET")}.txt")`, `service(env("SECRET"))`, `service("${env("SECRET")}")`,
	`[1, 2][env("SECRET")]`, `{ a = 1 }[env("SECRET")]`, `env("SECRET") + 1`, `-env("SECRET")`, `!env("SECRET")`, `env("SECRET") * 1000003`,
	`"%{ for x in [env("SECRET")] }${x}%{ endfor }"`, `"%{ if env("SECRET") }a%{ endif }"`, `env("SECRET", env("SECRET"), "a")`,
	`[env("SECRET")]...`, `nofunction(env("SECRET"))`, `env("SECRET").b`, `env([env("SECRET")])`, `true ? [env("SECRET")] : { a = env("SECRET") }`,
}

// secretPlaces are all arguments of all blocks: one of %s for each of the
// values that are given at once.
var secretPlaces = map[string]string{
	"":                 "data_dir plugin_dir watch_files sync_interval nonsense",
	"agent {\n%s\n}\n": "log_level log_format socket http user group nonsense",
	"node {\n%s\n}\n":  "zone addresses local_networks",
	"source \"consul\" {\n%s\n}\n": "address datacenter token token_file ca_file cert_file key_file server_name " +
		"select exclude default_port max_blocking hold",
	"vip_pool \"a\" {\n%[1]s\n}\nvip_pool \"b\" {\n%[1]s\n}\n": "cidr store",
	"dataplane \"userspace\" {\n%s\n}\n": "default version sha256 user capabilities auto_upgrade capture connect_timeout retries buffer " +
		"idle_timeout max_connections ratio old_limit ports labels token mode tls auth backend nonsense",
	"dataplane \"userspace\" {\ntls {\n%s\n}\n}\n":                                                                     "certificate key minimum",
	"dataplane \"userspace\" {\nbackend {\n%s\n}\n}\n":                                                                 "name weight",
	"defaults {\n%[1]s\n}\nservice \"one\" {\nport = 80\n}\n":                                                          strings.Join(serviceArguments, " "),
	"service \"one\" {\n%[1]s\nport = 80\n}\nservice \"two-service\" {\n%[1]s\nport = 80\n}\n":                         strings.ReplaceAll(strings.Join(serviceArguments, " "), " port ", " "),
	"service \"one\" {\n%[1]s\n}\nservice \"two-service\" {\nvip = service(\"one\")\n%[1]s\n}\n":                       "port node_port dataplane vip",
	"service \"one\" {\nvip = [\"10.96.0.9\"]\n%[1]s\n}\nservice \"two-service\" {\nvip = [\"10.96.0.9\"]\n%[1]s\n}\n": "port node_port dataplane external",
	"service \"one\" {\nport = 80\nendpoint {\n%[1]s\n}\nendpoint {\n%[1]s\n}\n}\n":                                    "address weight zone",
	"service \"one\" {\nport = 80\ncheck {\n%s\n}\n}\n":                                                                "tcp http interval timeout rise fall",
}

// around is what is there besides, so that blocks are compared.
func around(text string) string {
	if !strings.Contains(text, "dataplane \"userspace\"") {
		text += "dataplane \"userspace\" {\n default = true\n}\ndataplane \"other\" {}\n"
	}
	if !strings.Contains(text, "vip_pool") {
		text += "vip_pool \"default\" {\n cidr = [\"10.96.0.0/16\"]\n}\n"
	}
	return text
}

// TestSecretsNeverShown: a value that env() or file() gave is in no message,
// whatever is wrong with it or with what it is put into.
func TestSecretsNeverShown(t *testing.T) {
	dir, native, found := t.TempDir(), 0, 0
	options := testOptions()
	for n, secret := range secretValues {
		if err := os.WriteFile(filepath.Join(dir, "secret.txt"), []byte(secret.value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		options.LookupEnv = func(name string) (string, bool) { return secret.value, name == "SECRET" }
		try := func(path, text string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			for place, said := range everythingSaid(t, path, options) {
				if found++; strings.Contains(said, secret.never) {
					t.Fatalf("%s of\n%s\nwith %q says:\n%s", place, text, secret.value, said)
				}
			}
		}
		for block, arguments := range secretPlaces {
			if block == "" {
				block = "%s\n"
			}
			for i, argument := range strings.Fields(arguments) {
				for j, form := range secretForms {
					if native++; !*allSecrets && (7*i+11*j)%(2*len(secretValues)) != n {
						continue // one value for half of them
					}
					try(filepath.Join(dir, "a.hcl"), around(fmt.Sprintf(block, argument+" = "+form)))
				}
				if strings.HasPrefix(block, "service \"one\" {\n%[1]s\nport") && (*allSecrets || i%4 == n%4) {
					for _, text := range secretJSON(t, argument) {
						try(filepath.Join(dir, "a.json"), text)
					}
				}
			}
		}
	}
	t.Logf("%d native files, %d outputs", native, found)
}

// secretJSON gives files in which an argument of two services is a secret.
func secretJSON(t *testing.T, argument string) []string {
	t.Helper()
	const env = `${env("SECRET")}`
	var texts []string
	for _, v := range []any{
		env, "x" + env, `${file("secret.txt")}`, []any{env}, []any{env, "x" + env}, map[string]any{"a": env}, map[string]any{env: env},
		`${file(env("SECRET"))}`, `${service(env("SECRET"))}`, `${[for x in [env("SECRET")] : x]}`, `%{ if env("SECRET") }a%{ endif }`,
		map[string]any{"retries": env, "timeout": env},
	} {
		one := map[string]any{argument: v, "port": 80}
		data, err := json.Marshal(map[string]any{
			"service": map[string]any{"one": one, "two-service": one}, "dataplane": map[string]any{"userspace": map[string]any{"labels": v}},
			"vip_pool": map[string]any{"default": map[string]any{"cidr": "10.96.0.0/16"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(data), strings.ReplaceAll(string(data), "${", `\u0024\u007b`))
	}
	return texts
}

// everythingSaid loads and binds a file and gives all that is said of it.
func everythingSaid(t *testing.T, path string, options Options) map[string]string {
	t.Helper()
	cfg, diags := Load([]string{path}, options)
	_, more := Bind(cfg, testSchemas(t), Unasked{})
	diags.Append(more)
	var text, out bytes.Buffer
	if err := diags.WriteText(&text, false); err != nil {
		t.Fatal(err)
	}
	if err := diags.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"text": text.String(), "JSON": out.String(), "error": fmt.Errorf("the configuration is not usable: %w", diags).Error(), "value": fmt.Sprint(diags.All())}
}

// TestPluginsMessage: what a plugin has against a value may quote it.
func TestPluginsMessage(t *testing.T) {
	path := write(t, "a.hcl", "dataplane \"userspace\" {\n  mode = \"fast\"\n  labels = { a = env(\"CAPTURE\"), b = \"plain\" }\n}\n")
	cfg, diags := validate(t, path)
	if diags.Len() > 0 {
		t.Fatal(diags.All())
	}
	got := Refused(cfg, "userspace", testSchemas(t)["userspace"], []dataplane.Diagnostic{
		{Path: []string{"labels", "a"}, Summary: "Bad label", Detail: `"hunter2-of-the-environment" is taken`},
		{Path: []string{"labels", "b"}, Summary: "Bad label", Detail: `"plain" is taken`},
	}).Error()
	if strings.Contains(got, "hunter2") || !strings.Contains(got, `"(sensitive)" is taken`) || !strings.Contains(got, `"plain" is taken`) {
		t.Error(got)
	}
}

// TestComputed holds what counts as written out.
func TestComputed(t *testing.T) {
	for text, want := range map[string]bool{
		`"a"`: false, `-5`: false, `["a", 5, null]`: false, `{ a = "b (c)" }`: false, `"$${a}"`: false, `service("web")`: false, `true ? "a" : "b"`: false,
		`env("A")`: true, `"${env("A")}"`: true, `"x${1}"`: true, `"%{ if true }a%{ endif }"`: true, `["a", file("b")]`: true,
		`service(env("A"))`: true, `{ a = env ("b") }`: true, `(env("A"))`: true, ``: true,
	} {
		src := newSources(nil)
		src.add("a.hcl", []byte(text))
		if got := src.computed(&hcl.Range{Filename: "a.hcl", End: hcl.Pos{Byte: len(text)}}); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	for text, want := range map[string]bool{
		`"a"`: false, `-5`: false, `["a (b)", {"c": null}]`: false, `"${env(\"A\")}"`: true, `"\u0024{1}"`: true, `{"%{ if true }": 1}`: true, `["a"`: true,
	} {
		src := newSources(nil)
		src.add("a.json", []byte(text))
		if got := src.computed(&hcl.Range{Filename: "a.json", End: hcl.Pos{Byte: len(text)}}); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}
