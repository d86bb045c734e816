package admin

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// row is a metric as the page and the registry must agree on it.
type row struct {
	Type   string
	Labels string
	Help   string
}

// gather gives what a scrape of a full sample shows, less the metrics of the
// Go runtime and the process.
func gather(t *testing.T, m *Metrics) map[string]row {
	t.Helper()
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]row{}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "go_") || strings.HasPrefix(f.GetName(), "process_") {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		slices.Sort(labels)
		found[f.GetName()] = row{strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp()}
	}
	return found
}

// TestPage compares docs/metrics.md with the registry, both ways.
func TestPage(t *testing.T) {
	m := NewMetrics(fullSample)
	m.Applied("userspace", time.Millisecond, 2*time.Millisecond)
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile("(?m)^\\| `(patchbay_[a-z_]+)` \\| (\\w+) \\| ([^|]*) \\| ([^|]*) \\|$")
	documented := map[string]row{}
	for _, found := range line.FindAllStringSubmatch(string(page), -1) {
		if _, twice := documented[found[1]]; twice {
			t.Errorf("the page has %s twice", found[1])
		}
		labels := strings.Split(strings.ReplaceAll(strings.TrimSpace(found[3]), "`", ""), ", ")
		slices.Sort(labels)
		documented[found[1]] = row{found[2], strings.Join(labels, ", "), strings.TrimSpace(found[4])}
	}
	if diff := cmp.Diff(gather(t, m), documented); diff != "" {
		t.Errorf("docs/metrics.md differs from the registry (-registry +page):\n%s", diff)
	}
}

// TestEveryMetricHasASample makes sure that the full sample misses none, or
// TestPage would not see it.
func TestEveryMetricHasASample(t *testing.T) {
	got := slices.Collect(maps.Keys(gather(t, NewMetrics(fullSample))))
	for _, m := range metrics() {
		if !slices.Contains(got, m.name) {
			t.Errorf("%s has no value in the full sample", m.name)
		}
		if m.kind == counter && !strings.HasSuffix(m.name, "_total") {
			t.Errorf("counter %s does not end in _total", m.name)
		}
	}
}

// TestServicesAreBounded: the number of series does not grow with the number
// of services without end.
func TestServicesAreBounded(t *testing.T) {
	const services = MaxServiceMetrics + 250
	sample := fullSample()
	sample.Carriers[0].ServicesCounters = nil
	for i := range services {
		sample.Carriers[0].ServicesCounters = append(sample.Carriers[0].ServicesCounters, dataplane.ServiceStatistics{ID: fmt.Sprintf("s%04d", i)})
	}
	families, err := NewMetrics(func() *Sample { return sample }).Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]int{}
	var left *dto.Metric
	for _, f := range families {
		series[f.GetName()] = len(f.GetMetric())
		if f.GetName() == "patchbay_services_without_metrics" {
			left = f.GetMetric()[0]
		}
	}
	if n := series["patchbay_service_connections_total"]; n != MaxServiceMetrics {
		t.Errorf("%d services have metrics of their own, want %d", n, MaxServiceMetrics)
	}
	if got := left.GetGauge().GetValue(); got != services-MaxServiceMetrics {
		t.Errorf("%v left out, want %d", got, services-MaxServiceMetrics)
	}
}

// TestBadLabels: what a plugin calls its services must not break the scrape.
func TestBadLabels(t *testing.T) {
	sample := fullSample()
	sample.Carriers[0].ServicesCounters[0].ID = "\xff\xfe"
	m := NewMetrics(func() *Sample { return sample })
	if _, ok := gather(t, m)["patchbay_service_connections_total"]; ok {
		t.Error("a label that is no text was shown")
	}
}
