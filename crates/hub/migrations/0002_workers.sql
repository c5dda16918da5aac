-- Which worker an app is on, and since which epoch: the number of owners that it has had. Rows from before are of the worker in the
-- hub's own process, which has been their only owner.
ALTER TABLE apps ADD COLUMN worker TEXT NOT NULL DEFAULT 'local';
ALTER TABLE apps ADD COLUMN epoch INTEGER NOT NULL DEFAULT 1 CHECK (epoch >= 1);
-- The image that is current in the store of images, as (epoch, generation); 0: none is, and its worker's journal decides.
ALTER TABLE apps ADD COLUMN generation INTEGER NOT NULL DEFAULT 0 CHECK (generation >= 0);
