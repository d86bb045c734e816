package dataplane

import (
	"errors"
	"fmt"

	pb "github.com/patchbay-proxy/patchbay/sdk/proto/patchbay/dataplane/v1"
)

// transaction is what the messages of one Apply came to.
type transaction struct {
	session, revision, base uint64
	full                    bool
	// upserts by id, and their ids in the order in which they came.
	upserts map[string]*Service
	order   []string
	deletes []string
}

// collector puts the messages of one Apply together. It touches nothing else:
// a stream that is cut or wrong has changed nothing.
type collector struct {
	transaction
	begun, committed bool
	deleted          map[string]bool
	names            *places
}

func newCollector() *collector {
	return &collector{
		transaction: transaction{upserts: map[string]*Service{}}, deleted: map[string]bool{}, names: newPlaces(),
	}
}

// add takes the next message; after one with commit there must be none.
func (c *collector) add(m *pb.ApplyRequest) error {
	switch begin := m.GetBegin(); {
	case c.committed:
		return errors.New("a message after the commit")
	case !c.begun && begin == nil:
		return errors.New("the first message has no begin")
	case c.begun && begin != nil:
		return errors.New("a second begin")
	case begin != nil:
		c.begun = true
		c.session, c.revision, c.base, c.full = begin.GetSession(), begin.GetRevision(), begin.GetBase(), begin.GetFull()
	}
	for _, u := range m.GetUpserts() {
		if err := c.upsert(u); err != nil {
			return err
		}
	}
	for _, id := range m.GetDeletes() {
		if err := c.remove(id); err != nil {
			return err
		}
	}
	c.committed = m.GetCommit()
	return nil
}

func (c *collector) upsert(u *pb.Upsert) error {
	m := u.GetService()
	if m == nil {
		return errors.New("an upsert without a service")
	}
	if u.GetMoreEndpoints() {
		return c.more(m)
	}
	s, err := decodeService(m, c.names)
	if err != nil {
		return err
	}
	if c.upserts[s.ID] != nil || c.deleted[s.ID] {
		return fmt.Errorf("service %s: named twice in one Apply", s.ID)
	}
	c.upserts[s.ID] = s
	c.order = append(c.order, s.ID)
	return nil
}

// more adds endpoints to a service of this Apply.
func (c *collector) more(m *pb.Service) error {
	if err := checkID(m.GetId()); err != nil {
		return err
	}
	s := c.upserts[m.GetId()]
	if s == nil {
		return fmt.Errorf("service %s: more endpoints without an upsert before", m.GetId())
	}
	if len(m.GetFrontends()) > 0 || len(m.GetAllow()) > 0 || len(m.GetOptionsJson()) > 0 || m.GetAffinity() != nil ||
		m.GetBalance() != "" || m.GetOnEmpty() != 0 || m.GetMasquerade() != 0 || m.GetOnDrainEnd() != 0 {
		return fmt.Errorf("service %s: more endpoints come with an id and endpoints alone", m.GetId())
	}
	endpoints, err := decodeEndpoints(m, c.names)
	if err != nil {
		return err
	}
	s.Endpoints = append(s.Endpoints, endpoints...)
	return nil
}

func (c *collector) remove(id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	if c.full {
		return fmt.Errorf("service %s: a full Apply has no deletes", id)
	}
	if c.upserts[id] != nil || c.deleted[id] {
		return fmt.Errorf("service %s: named twice in one Apply", id)
	}
	c.deleted[id] = true
	c.deletes = append(c.deletes, id)
	return nil
}
