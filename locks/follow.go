package locks

import "time"

const (
	// followEvery is how often Sentinel is asked which server is the master.
	followEvery = time.Second

	// sentinelNews is how long it takes until every sentinel names a new master: they tell each other every two seconds.
	sentinelNews = 3 * time.Second
)
