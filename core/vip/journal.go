package vip

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
)

// A file of leases is a journal of lines: eight hexadecimal digits, the CRC-32C
// of what follows the blank after them; then JSON. The first line says what the
// file is, each other one is a claim; of several for one address the last
// counts. A line that is cut or garbled spoils no other.

const journalVersion = 1

type journalHead struct {
	Kind    string `json:"patchbay"`
	Version int    `json:"version"`
}

var crcTable = crc32.MakeTable(crc32.Castagnoli)

func journalHeader() []byte {
	return appendLine(nil, journalHead{Kind: "leases", Version: journalVersion})
}

func encodeClaims(claims []claim) []byte {
	var out []byte
	for _, c := range claims {
		out = appendLine(out, c)
	}
	return out
}

func appendLine(out []byte, value any) []byte {
	// Strings, addresses and times of our own making: they always encode.
	body, _ := json.Marshal(value)
	out = fmt.Appendf(out, "%08x ", crc32.Checksum(body, crcTable))
	return append(append(out, body...), '\n')
}

// decodeJournal gives the claims of a file, and what is damaged in words. It is
// an error when the file was written by another version.
func decodeJournal(data []byte) (claims []claim, damage string, err error) {
	if len(data) == 0 {
		return nil, "it is empty", nil
	}
	bad, number, headOK := 0, 0, false
	for line := range bytes.Lines(data) {
		number++
		body, whole := checkLine(line)
		if number == 1 {
			var head journalHead
			if headOK = whole && json.Unmarshal(body, &head) == nil && head.Kind == "leases"; headOK && head.Version != journalVersion {
				return nil, "", fmt.Errorf("it has version %d, and this core knows %d: start the core that wrote it, or move the file away", head.Version, journalVersion)
			}
			if headOK {
				continue
			}
		}
		c, cerr := decodeClaim(body)
		if !whole || cerr != nil {
			bad++
			continue
		}
		claims = append(claims, c)
	}
	switch {
	case bad > 0:
		damage = fmt.Sprintf("%d of %d lines are cut or garbled", bad, number)
	case !headOK:
		damage = "its first line is missing"
	}
	return claims, damage, nil
}

func checkLine(line []byte) (body []byte, whole bool) {
	line, whole = bytes.CutSuffix(line, []byte{'\n'})
	if !whole || len(line) < 9 || line[8] != ' ' {
		return nil, false
	}
	sum, err := hex.DecodeString(string(line[:8]))
	if err != nil {
		return nil, false
	}
	body = line[9:]
	want := crc32.Checksum(body, crcTable)
	return body, bytes.Equal(sum, []byte{byte(want >> 24), byte(want >> 16), byte(want >> 8), byte(want)})
}

func decodeClaim(body []byte) (claim, error) {
	var c claim
	if err := json.Unmarshal(body, &c); err != nil {
		return c, err
	}
	if c.Service == "" || !c.Address.IsValid() || c.Address != c.Address.Unmap() || c.Address.Zone() != "" {
		return c, errors.New("no service or no address")
	}
	return c, nil
}
