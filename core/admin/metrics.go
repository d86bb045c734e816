package admin

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

// Sample is what the metrics show at one moment; the agent gives it when it is
// asked for.
type Sample struct {
	Version   string
	Revision  uint64
	Healthy   bool
	ByState   map[ServiceState]int
	Endpoints EndpointCount
	Sources   []SourceStatus
	Carriers  []CarrierSample
	// Leases held, and resting, by pool.
	LeasesHeld, LeasesResting map[string]int
	ConfigLoaded              time.Time
	ConfigValid               bool
	ReloadsOK, ReloadsFailed  uint64
}

// CarrierSample is a dataplane in a Sample.
type CarrierSample struct {
	DataplaneStatus
	// Carried services, and those that the dataplane could not carry.
	Carried, Failed                  int
	Full, Difference, Check, Errors  uint64
	Upserted, Deleted                uint64
	Starts, Crashes, LogLinesDropped uint64
	Repaired, Unrepaired             uint64
	// Totals over all services since the agent's start.
	Totals           dataplane.Counters
	RefusedTotal     uint64
	StatisticsKnown  bool
	ServicesCounters []dataplane.ServiceStatistics
}

// MaxServiceMetrics is how many services have metrics of their own at most;
// the others, last in the order of names, are in their dataplane's totals only.
const MaxServiceMetrics = 1000

// metric is one of the project's metrics, and the row of docs/metrics.md that
// describes it.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string
	// give adds the metric's values.
	give func(s *Sample, add func(value float64, labels ...string))
}

func (m metric) desc() *prometheus.Desc { return prometheus.NewDesc(m.name, m.help, m.labels, nil) }

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// perCarrier makes a metric with one value for each dataplane.
func perCarrier(name, help string, kind prometheus.ValueType, value func(*CarrierSample) float64) metric {
	return metric{name, help, kind, []string{"dataplane"}, func(s *Sample, add func(float64, ...string)) {
		for i := range s.Carriers {
			add(value(&s.Carriers[i]), s.Carriers[i].Name)
		}
	}}
}

// perCarrierAnd makes a metric with several values for each dataplane, told
// apart by a second label.
func perCarrierAnd(label, name, help string, kind prometheus.ValueType, values func(*CarrierSample) map[string]float64) metric {
	return metric{name, help, kind, []string{"dataplane", label}, func(s *Sample, add func(float64, ...string)) {
		for i := range s.Carriers {
			for word, v := range values(&s.Carriers[i]) {
				add(v, s.Carriers[i].Name, word)
			}
		}
	}}
}

// perCarrierCounted is perCarrier for dataplanes that give statistics.
func perCarrierCounted(name, help string, kind prometheus.ValueType, value func(*CarrierSample) float64) metric {
	return metric{name, help, kind, []string{"dataplane"}, func(s *Sample, add func(float64, ...string)) {
		for i := range s.Carriers {
			if s.Carriers[i].StatisticsKnown {
				add(value(&s.Carriers[i]), s.Carriers[i].Name)
			}
		}
	}}
}

// perService makes a metric with one value for each service that has
// statistics, up to MaxServiceMetrics of them.
func perService(name, help string, kind prometheus.ValueType, value func(*dataplane.ServiceStatistics) float64) metric {
	return metric{name, help, kind, []string{"dataplane", "service"}, func(s *Sample, add func(float64, ...string)) {
		s.eachService(func(carrier string, c *dataplane.ServiceStatistics) { add(value(c), carrier, c.ID) })
	}}
}

// eachService walks over the services that have metrics of their own, and
// gives how many were left out.
func (s *Sample) eachService(f func(carrier string, c *dataplane.ServiceStatistics)) (leftOut int) {
	n := 0
	for i := range s.Carriers {
		for j := range s.Carriers[i].ServicesCounters {
			if n++; n > MaxServiceMetrics {
				leftOut++
				continue
			}
			f(s.Carriers[i].Name, &s.Carriers[i].ServicesCounters[j])
		}
	}
	return leftOut
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func unixTime(t *time.Time) float64 {
	if t == nil || t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

func metrics() []metric {
	return slices.Concat(agentMetrics(), sourceMetrics(), carrierMetrics(), trafficMetrics())
}

func agentMetrics() []metric {
	return []metric{
		{"patchbay_build_info", "The version of the agent, as a label; always 1.", gauge, []string{"version"},
			func(s *Sample, add func(float64, ...string)) { add(1, s.Version) }},
		{"patchbay_healthy", "1 while /healthz answers 200.", gauge, nil,
			func(s *Sample, add func(float64, ...string)) { add(one(s.Healthy)) }},
		{"patchbay_snapshot_revision", "Revision of the newest snapshot.", gauge, nil,
			func(s *Sample, add func(float64, ...string)) { add(float64(s.Revision)) }},
		{"patchbay_services", "Services by state.", gauge, []string{"state"},
			func(s *Sample, add func(float64, ...string)) {
				for _, state := range ServiceStates() {
					add(float64(s.ByState[state]), string(state))
				}
			}},
		{"patchbay_endpoints", "Endpoints of all services by state.", gauge, []string{"state"},
			func(s *Sample, add func(float64, ...string)) {
				add(float64(s.Endpoints.Active), "active")
				add(float64(s.Endpoints.Draining), "draining")
				add(float64(s.Endpoints.Unused), "unused")
			}},
		{"patchbay_config_valid", "1 when the files were without mistakes at the last attempt to load them; 0 means that the configuration of before is in force.", gauge, nil,
			func(s *Sample, add func(float64, ...string)) { add(one(s.ConfigValid)) }},
		{"patchbay_config_loaded_timestamp_seconds", "When the configuration in force was loaded.", gauge, nil,
			func(s *Sample, add func(float64, ...string)) { add(unixTime(&s.ConfigLoaded)) }},
		{"patchbay_config_reloads_total", "Attempts to load the configuration anew, by result.", counter, []string{"result"},
			func(s *Sample, add func(float64, ...string)) {
				add(float64(s.ReloadsOK), "loaded")
				add(float64(s.ReloadsFailed), "refused")
			}},
		{"patchbay_vip_leases", "Leases of VIPs by pool and state.", gauge, []string{"pool", "state"},
			func(s *Sample, add func(float64, ...string)) {
				for pool, n := range s.LeasesHeld {
					add(float64(n), pool, "held")
				}
				for pool, n := range s.LeasesResting {
					add(float64(n), pool, "resting")
				}
			}},
	}
}

func sourceMetrics() []metric {
	return []metric{
		{"patchbay_source_read", "1 once the source has been read, or has given its saved state.", gauge, []string{"source"},
			func(s *Sample, add func(float64, ...string)) {
				for _, source := range s.Sources {
					add(one(source.Read), source.Name)
				}
			}},
		{"patchbay_source_stale_since_timestamp_seconds", "Since when the source can't be read; 0 while it can.", gauge, []string{"source"},
			func(s *Sample, add func(float64, ...string)) {
				for _, source := range s.Sources {
					add(unixTime(source.StaleSince), source.Name)
				}
			}},
	}
}

func carrierMetrics() []metric {
	return []metric{
		perCarrier("patchbay_dataplane_connected", "1 while the plugin runs and is configured.", gauge,
			func(c *CarrierSample) float64 { return one(c.Connected) }),
		perCarrier("patchbay_dataplane_acknowledged_revision", "Newest revision that the dataplane has acknowledged.", gauge,
			func(c *CarrierSample) float64 { return float64(c.Acknowledged) }),
		perCarrier("patchbay_dataplane_waiting_since_timestamp_seconds", "When the oldest change was made that the dataplane has not acknowledged; 0 when there is none.", gauge,
			func(c *CarrierSample) float64 { return unixTime(c.WaitingSince) }),
		perCarrierAnd("state", "patchbay_dataplane_services", "Services of the dataplane: carried as asked, or failed.", gauge,
			func(c *CarrierSample) map[string]float64 {
				return map[string]float64{"carried": float64(c.Carried), "failed": float64(c.Failed)}
			}),
		perCarrierAnd("kind", "patchbay_dataplane_applies_total", "Applies that the dataplane acknowledged: of everything, of a difference, or a check without changes.", counter,
			func(c *CarrierSample) map[string]float64 {
				return map[string]float64{"full": float64(c.Full), "difference": float64(c.Difference), "check": float64(c.Check)}
			}),
		perCarrier("patchbay_dataplane_apply_errors_total", "Applies that failed as a whole, or whose outcome is unknown.", counter,
			func(c *CarrierSample) float64 { return float64(c.Errors) }),
		perCarrierAnd("kind", "patchbay_dataplane_sent_services_total", "Services that were sent to the dataplane, as upserts and as deletes.", counter,
			func(c *CarrierSample) map[string]float64 {
				return map[string]float64{"upsert": float64(c.Upserted), "delete": float64(c.Deleted)}
			}),
		perCarrierAnd("repaired", "patchbay_dataplane_drift_total", "Things of ours that others changed, as the dataplane found them, by whether it put them back.", counter,
			func(c *CarrierSample) map[string]float64 {
				return map[string]float64{"true": float64(c.Repaired), "false": float64(c.Unrepaired)}
			}),
		perCarrier("patchbay_plugin_starts_total", "Processes of the plugin that were started.", counter,
			func(c *CarrierSample) float64 { return float64(c.Starts) }),
		perCarrier("patchbay_plugin_crashes_total", "Processes of the plugin that ended, or failed to start, without being asked to.", counter,
			func(c *CarrierSample) float64 { return float64(c.Crashes) }),
		perCarrier("patchbay_plugin_log_lines_dropped_total", "Lines of the plugin's output that were not logged because there were too many.", counter,
			func(c *CarrierSample) float64 { return float64(c.LogLinesDropped) }),
	}
}

func trafficMetrics() []metric {
	return []metric{
		perCarrierCounted("patchbay_dataplane_connections_total", "Connections that the dataplane carried, over all services.", counter,
			func(c *CarrierSample) float64 { return float64(c.Totals.Connections) }),
		perCarrierCounted("patchbay_dataplane_connections_active", "Connections that the dataplane carries now.", gauge,
			func(c *CarrierSample) float64 { return float64(c.Totals.Active) }),
		perCarrierCounted("patchbay_dataplane_bytes_in_total", "Bytes from clients to endpoints.", counter,
			func(c *CarrierSample) float64 { return float64(c.Totals.BytesIn) }),
		perCarrierCounted("patchbay_dataplane_bytes_out_total", "Bytes from endpoints to clients.", counter,
			func(c *CarrierSample) float64 { return float64(c.Totals.BytesOut) }),
		perCarrierCounted("patchbay_dataplane_connections_failed_total", "Connections that no endpoint took.", counter,
			func(c *CarrierSample) float64 { return float64(c.Totals.Failed) }),
		perCarrierCounted("patchbay_dataplane_connections_refused_total", "Connections refused by a limit or by the allowed sources.", counter,
			func(c *CarrierSample) float64 { return float64(c.RefusedTotal) }),
		perService("patchbay_service_connections_total", "Connections of the service since the plugin's start.", counter,
			func(c *dataplane.ServiceStatistics) float64 { return float64(c.Connections) }),
		perService("patchbay_service_connections_active", "Connections of the service now.", gauge,
			func(c *dataplane.ServiceStatistics) float64 { return float64(c.Active) }),
		perService("patchbay_service_bytes_in_total", "Bytes from clients to the service.", counter,
			func(c *dataplane.ServiceStatistics) float64 { return float64(c.BytesIn) }),
		perService("patchbay_service_bytes_out_total", "Bytes from the service to clients.", counter,
			func(c *dataplane.ServiceStatistics) float64 { return float64(c.BytesOut) }),
		perService("patchbay_service_connections_failed_total", "Connections that no endpoint of the service took.", counter,
			func(c *dataplane.ServiceStatistics) float64 { return float64(c.Failed) }),
		perService("patchbay_service_connections_refused_total", "Connections of the service refused by a limit or by the allowed sources.", counter,
			func(c *dataplane.ServiceStatistics) float64 { return float64(c.Refused) }),
		{"patchbay_services_without_metrics", "Services that have no metrics of their own because there are more than 1,000.", gauge, nil,
			func(s *Sample, add func(float64, ...string)) {
				add(float64(s.eachService(func(string, *dataplane.ServiceStatistics) {})))
			}},
	}
}

// applySecondsName is the histogram of what Applies took.
const applySecondsName = "patchbay_dataplane_apply_seconds"

// latencySecondsName is the histogram from the making of a snapshot to its
// acknowledgement.
const latencySecondsName = "patchbay_dataplane_latency_seconds"

// Metrics is a registry of its own with the project's metrics, those of the Go
// runtime and those of the process.
type Metrics struct {
	Registry *prometheus.Registry
	apply    *prometheus.HistogramVec
	latency  *prometheus.HistogramVec
}

// NewMetrics makes the registry; sample is called for each scrape.
func NewMetrics(sample func() *Sample) *Metrics {
	// From a fifth of a millisecond, what one service's difference takes, to
	// half a minute, the deadline.
	buckets := []float64{.0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30}
	m := &Metrics{
		Registry: prometheus.NewPedanticRegistry(),
		apply: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: applySecondsName, Help: "How long Applies took, as the core sees it.", Buckets: buckets,
		}, []string{"dataplane"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: latencySecondsName, Help: "From the making of a snapshot to its acknowledgement.", Buckets: buckets,
		}, []string{"dataplane"}),
	}
	m.Registry.MustRegister(m.apply, m.latency, &collector{sample: sample, metrics: metrics()},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Applied counts an Apply; a latency of zero isn't counted.
func (m *Metrics) Applied(dataplane string, took, latency time.Duration) {
	m.apply.WithLabelValues(dataplane).Observe(took.Seconds())
	if latency > 0 {
		m.latency.WithLabelValues(dataplane).Observe(latency.Seconds())
	}
}

// Forget drops what was counted of a dataplane that is no more.
func (m *Metrics) Forget(dataplane string) {
	m.apply.DeleteLabelValues(dataplane)
	m.latency.DeleteLabelValues(dataplane)
}

type collector struct {
	sample  func() *Sample
	metrics []metric
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		to <- m.desc()
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	s := c.sample()
	for _, m := range c.metrics {
		desc := m.desc()
		m.give(s, func(value float64, labels ...string) {
			// A label that is no UTF-8 is the only error there can be.
			if sample, err := prometheus.NewConstMetric(desc, m.kind, value, labels...); err == nil {
				to <- sample
			}
		})
	}
}
